//! What every reply tells the browser not to do.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};

/// The page and its own files; nothing inline, nothing from elsewhere.
const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                    connect-src 'self'; base-uri 'none'; form-action 'none'; \
                    frame-ancestors 'none'";

/// A document with names of somebody else's in it: `may` is its own policy. Its scripts, should any
/// run that is not meant to, are those of a stranger, whom this server refuses.
pub(crate) fn untrusted_document_policy(may: &str) -> String {
    format!(
        "{may}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
    )
}

/// Adds what is not there yet.
pub(crate) fn protect(headers: &mut HeaderMap) {
    let mut add = |name: HeaderName, value: &'static str| {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    };
    add(CONTENT_SECURITY_POLICY, PAGE);
    add(X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(CACHE_CONTROL, "no-store");
    add(REFERRER_POLICY, "no-referrer");
    add(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
}
