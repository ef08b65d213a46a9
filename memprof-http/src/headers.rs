//! What every reply tells the browser not to do.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};

/// The page and its own files; nothing inline, nothing from elsewhere.
const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                    connect-src 'self'; base-uri 'none'; form-action 'none'; \
                    frame-ancestors 'none'";

/// A drawing that runs its own script to zoom and search, as if it came from nowhere.
const DRAWING: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                       sandbox allow-scripts";

/// Adds what is not there yet.
pub(crate) fn protect(headers: &mut HeaderMap) {
    let is_drawing = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "image/svg+xml");
    let policy = if is_drawing { DRAWING } else { PAGE };
    let mut add = |name: HeaderName, value: &'static str| {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    };
    add(CONTENT_SECURITY_POLICY, policy);
    add(X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(CACHE_CONTROL, "no-store");
    add(REFERRER_POLICY, "no-referrer");
    add(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
}
