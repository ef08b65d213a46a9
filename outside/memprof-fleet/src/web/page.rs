//! Files of the page, from `page/`. Files that all pages of memprof share come from memprof-http.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::get;
use memprof_http::{shared_file_routes, whole_page};

use super::ServerState;

/// HTML of the page.
const INDEX_HTML: &str = include_str!("page/index.html");

/// Paths and texts of the scripts.
const SCRIPTS: [(&str, &str); 4] = [
    ("/fleet.js", include_str!("page/fleet.js")),
    ("/query.js", include_str!("page/query.js")),
    ("/overview.js", include_str!("page/overview.js")),
    ("/profile.js", include_str!("page/profile.js")),
];

/// Returns the routes of the web page at `/` and of the scripts and styles that it loads.
pub(super) fn routes() -> Router<Arc<ServerState>> {
    let index = async || Html(whole_page("memprof fleet", "fleet.js", INDEX_HTML));
    let router = shared_file_routes().route("/", get(index));
    SCRIPTS.into_iter().fold(router, |router, (path, text)| {
        let script = [(CONTENT_TYPE, "text/javascript; charset=utf-8")];
        router.route(path, get(async move || (script, text)))
    })
}
