//! The page's files, as they lie in `page/`.

use axum::Router;
use axum::extract::Path;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, Redirect};
use axum::routing::{MethodRouter, get};

use crate::router::Shared;

const INDEX: &str = include_str!("page/index.html");

/// What the page loads, by paths relative to its own.
const FILES: &[File] = &[];

#[derive(Clone, Copy)]
struct File {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

impl File {
    fn serve(self) -> MethodRouter<Shared> {
        get(async move || ([(CONTENT_TYPE, self.content_type)], self.bytes))
    }
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
    let route = |router: Router<Shared>, file: &File| router.route(file.path, file.serve());
    FILES.iter().fold(Router::new(), route)
}
