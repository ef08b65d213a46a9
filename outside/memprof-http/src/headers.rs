//! Security headers of every reply.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};

/// Policy of the page: loads its own files only, nothing inline.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                    connect-src 'self'; base-uri 'none'; form-action 'none'; \
                    frame-ancestors 'none'";

/// Returns the `Content-Security-Policy` of a document with untrusted names in it; `allowed` is the document's own
/// policy. If an injected script runs in spite of the policy, the sandbox gives it an opaque origin, whose requests
/// this server rejects.
pub(crate) fn untrusted_document_policy(allowed: &str) -> String {
    format!(
        "{allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
    )
}

/// Adds memprof's security headers to those of a response. A header that the response has already stays as it is.
pub(crate) fn add_security_headers(headers: &mut HeaderMap) {
    let mut add = |name: HeaderName, value: &'static str| {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    };
    add(CONTENT_SECURITY_POLICY, PAGE_POLICY);
    add(X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(CACHE_CONTROL, "no-store");
    add(REFERRER_POLICY, "no-referrer");
    add(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
}
