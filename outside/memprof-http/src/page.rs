//! Serves the files of the web page, from `page/`, and knows the paths of all pages.

use axum::Router;
use axum::extract::Path;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, Redirect};
use axum::routing::{MethodRouter, get};
use memprof_report::VIEWER;

use crate::request_host::SharedHosts;

/// Body of a host's page.
const INDEX: &str = include_str!("page/index.html");

/// Link in [`INDEX`] to the page of the machine's processes, and as it is where there is such a page.
const HIDDEN_LINK: &str = r#"<a id="processes-link" hidden>"#;
const SHOWN_LINK: &str = r#"<a id="processes-link">"#;

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file: its path relative to the page's, its content type and its text.
type File = (&'static str, &'static str, &'static str);

/// Files that only the page of a host loads, besides [`shared_file_routes`].
const HOST_FILES: [File; 7] = [
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/dumps.js", SCRIPT, include_str!("page/dumps.js")),
    ("/holders.js", SCRIPT, include_str!("page/holders.js")),
    ("/hosts.js", SCRIPT, include_str!("page/hosts.js")),
    ("/memory.js", SCRIPT, include_str!("page/memory.js")),
    ("/profile.js", SCRIPT, include_str!("page/profile.js")),
    ("/sampling.js", SCRIPT, include_str!("page/sampling.js")),
];

/// Files that every page loads.
const SHARED_FILES: [File; 4] = [
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/page.css", STYLE, include_str!("page/page.css")),
    ("/api.js", SCRIPT, include_str!("page/api.js")),
    ("/words.js", SCRIPT, include_str!("page/words.js")),
];

/// Returns the route that serves a constant text with its content type.
fn text_route<S: Clone + Send + Sync + 'static>(
    content_type: &'static str,
    text: &'static str,
) -> MethodRouter<S> {
    get(async move || ([(CONTENT_TYPE, content_type)], text))
}

/// Returns the page of a host. With `links_machine`, its link to the page of the machine's processes is visible.
pub(crate) fn host_page(links_machine: bool) -> Html<String> {
    let body = match links_machine {
        true => INDEX.replacen(HIDDEN_LINK, SHOWN_LINK, 1),
        false => INDEX.to_owned(),
    };
    Html(whole_page("memprof", "page.js", &body))
}

/// Returns the HTML of one of memprof's pages. `script` is the path of its script; `title` and `body` are inserted as
/// they are. The page's directory must serve the script and the files of [`shared_file_routes`].
pub fn whole_page(title: &str, script: &str, body: &str) -> String {
    format!(
        include_str!("page/whole.html"),
        title = title,
        script = script,
        body = body
    )
}

/// Redirects the path of a host to the same path with a final slash; without the slash, the page's relative links would
/// break. The target is relative, so that it also holds below a token or the path of a proxy.
pub(crate) async fn redirect_to_slash(Path(pid): Path<u32>) -> Redirect {
    Redirect::permanent(&format!("{pid}/"))
}

/// Returns the routes of the files that the page of a host loads.
pub(crate) fn host_file_routes() -> Router<SharedHosts> {
    add_file_routes(shared_file_routes(), &HOST_FILES)
}

/// Returns the routes of the files that the page of the machine's processes loads.
pub(crate) fn machine_file_routes() -> Router<SharedHosts> {
    let script = include_str!("page/machine.js");
    shared_file_routes().route("/machine.js", text_route(SCRIPT, script))
}

/// Returns the routes of the files that every page loads: `icon.svg`, `page.css`, `api.js`, `words.js`, and the
/// viewer below `viewer/`.
pub fn shared_file_routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let viewer = VIEWER.map(|(name, text)| {
        let kind = if name.ends_with(".css") {
            STYLE
        } else {
            SCRIPT
        };
        (format!("/viewer/{name}"), kind, text)
    });
    let router = viewer
        .into_iter()
        .fold(Router::new(), |router, (path, kind, text)| {
            router.route(&path, text_route(kind, text))
        });
    add_file_routes(router, &SHARED_FILES)
}

/// Adds a route for each file to `router`.
fn add_file_routes<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    files: &[File],
) -> Router<S> {
    files.iter().fold(router, |router, (path, kind, text)| {
        router.route(path, text_route(kind, text))
    })
}

/// Returns whether `path`, without the base URL's path, is that of a page, which a link of another site may open: a GET
/// of it changes nothing. Skips `/t/TOKEN`, which is there if the token was not removed, and `/host/PID`. The pages are
/// listed because paths of other routes may end in a slash, too.
pub(crate) fn is_page(path: &str) -> bool {
    let page = ["/t/", "/host/"].into_iter().fold(path, |path, prefix| {
        let rest = path.strip_prefix(prefix);
        rest.map_or(path, |rest| {
            rest.find('/').map_or("", |slash| &rest[slash..])
        })
    });
    matches!(page, "/" | "/machine/" | "/debug/pprof/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_other_sites_open_pages_alone() {
        let check = |path: &str, expected| assert_eq!(is_page(path), expected, "{path}");
        for page in [
            "/",
            "/host/7/",
            "/machine/",
            "/debug/pprof/",
            "/host/7/debug/pprof/",
            "/t/wrong/host/7/",
        ] {
            check(page, true);
        }
        for other in [
            "",
            "/host/7",
            "/flags/je_prof_reset/",
            "/host/7/flags/je_prof_active/",
            "/pprof/heap/",
            "/hotspots/heap/",
            "/service/jemalloc/pprof/heap/",
            "/host/7/host/8/",
            "/t/wrong/pprof/heap/",
        ] {
            check(other, false);
        }
    }
}
