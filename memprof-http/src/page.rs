//! The page's files, as they lie in `page/`.

use axum::Router;
use axum::extract::Path;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, Redirect};
use axum::routing::{MethodRouter, get};
use memprof_report::VIEWER;

use crate::extractor::Shared;

const INDEX: &str = include_str!("page/index.html");

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// What the page loads beside the viewer, by paths relative to its own.
const FILES: [(&str, &str, &str); 11] = [
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/page.css", STYLE, include_str!("page/page.css")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/api.js", SCRIPT, include_str!("page/api.js")),
    ("/dumps.js", SCRIPT, include_str!("page/dumps.js")),
    ("/holders.js", SCRIPT, include_str!("page/holders.js")),
    ("/hosts.js", SCRIPT, include_str!("page/hosts.js")),
    ("/memory.js", SCRIPT, include_str!("page/memory.js")),
    ("/profile.js", SCRIPT, include_str!("page/profile.js")),
    ("/sampling.js", SCRIPT, include_str!("page/sampling.js")),
    ("/words.js", SCRIPT, include_str!("page/words.js")),
];

fn serve(content_type: &'static str, text: &'static str) -> MethodRouter<Shared> {
    get(async move || ([(CONTENT_TYPE, content_type)], text))
}

/// The page, whose address ends in a slash.
pub(crate) async fn index() -> Html<&'static str> {
    Html(INDEX)
}

/// An address without the slash would break the page's relative links.
pub(crate) async fn with_slash(Path(pid): Path<u32>) -> Redirect {
    Redirect::permanent(&format!("{pid}/"))
}

/// Its other files.
pub(crate) fn routes() -> Router<Shared> {
    let router = FILES
        .iter()
        .fold(Router::new(), |router, (path, kind, text)| {
            router.route(path, serve(kind, text))
        });
    VIEWER.iter().fold(router, |router, (name, text)| {
        let kind = if name.ends_with(".css") {
            STYLE
        } else {
            SCRIPT
        };
        router.route(&format!("/viewer/{name}"), serve(kind, text))
    })
}
