//! The page's files, as they lie in `page/`; the rest is that of every page of memprof's.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::get;
use memprof_http::{shared_files, whole_page};

use super::ServerState;

const INDEX: &str = include_str!("page/index.html");

const FILES: [(&str, &str); 4] = [
    ("/fleet.js", include_str!("page/fleet.js")),
    ("/asked.js", include_str!("page/asked.js")),
    ("/overview.js", include_str!("page/overview.js")),
    ("/profile.js", include_str!("page/profile.js")),
];

pub(super) fn routes() -> Router<Arc<ServerState>> {
    let index = async || Html(whole_page("memprof fleet", "fleet.js", INDEX));
    let router = shared_files().route("/", get(index));
    FILES.into_iter().fold(router, |router, (path, text)| {
        let script = [(CONTENT_TYPE, "text/javascript; charset=utf-8")];
        router.route(path, get(async move || (script, text)))
    })
}
