//! The heap profiles of Go's `net/http/pprof`.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::any;
use tokio::time::sleep;

use crate::compat::command_line::serve_command_line;
use crate::compat::symbol::{self, SymbolFormat};
use crate::gateway::Gateway;
use crate::problem::Problem;
use crate::report::{PendingDump, stream_new_dump_as_tcmalloc};
use crate::report_query::ReportQuery;
use crate::request_arguments::parse_form;
use crate::request_host::{RequestHost, SharedHosts};

/// Longest profile in seconds: proxies close requests that are open longer.
const MAX_SECONDS: u64 = 600;

/// Returns the routes of the profiles. They take every method, except `symbol`: GET and POST. Of a repeated parameter,
/// the first value counts; values in a form come before those in the query.
pub(super) fn routes() -> Router<SharedHosts> {
    Router::new()
        .route("/debug/pprof", any(redirect_to_index))
        .route("/debug/pprof/", any(async |_: RequestHost| Html(INDEX)))
        .route("/debug/pprof/{profile}", any(unknown_profile_error))
        .route("/debug/pprof/heap", any(serve_heap))
        .route("/debug/pprof/allocs", any(serve_allocs))
        .route(
            "/debug/pprof/symbol",
            symbol::symbolizing_route(SymbolFormat::Go),
        )
        .route("/debug/pprof/cmdline", any(serve_command_line))
}

/// Returns the error 404 for the profiles that only Go programs have, such as `goroutine`.
async fn unknown_profile_error() -> GoError {
    let problem = Problem::not_found("Unknown profile");
    GoError(problem.remedy("heap and allocs are served"))
}

/// Redirects to the index, as Go's `ServeMux` does. The location is relative, so that it also holds below `/host/PID`.
async fn redirect_to_index() -> impl IntoResponse {
    (StatusCode::MOVED_PERMANENTLY, [(LOCATION, "pprof/")])
}

/// Error as `net/http/pprof` sends it: `go tool pprof` prints the text only with this header.
pub(super) struct GoError(Problem);

impl From<Problem> for GoError {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for GoError {
    /// Returns the message and remedy as text, with the header by which `go tool pprof` knows that it may print the
    /// text.
    fn into_response(self) -> Response {
        let is_go_pprof = (HeaderName::from_static("x-go-pprof"), "1");
        let text = format!("{}\n", self.0.reason());
        (self.0.status, [TEXT, is_go_pprof], text).into_response()
    }
}

type Result<T, E = GoError> = std::result::Result<T, E>;

const TEXT: (HeaderName, &str) = (CONTENT_TYPE, "text/plain; charset=utf-8");

const INDEX: &str = "<!doctype html>\n<html lang=\"en\">\n<title>/debug/pprof/</title>\n\
    <h1>/debug/pprof/</h1>\n<ul>\n\
    <li><a href=\"heap?debug=1\">heap</a>: what is alive\n\
    <li><a href=\"allocs?debug=1\">allocs</a>: what was allocated since profiling began\n\
    <li><a href=\"cmdline\">cmdline</a>\n</ul>\n</html>\n";

/// Requested kind of profile.
#[derive(Debug, PartialEq, Eq)]
enum ProfileRequest {
    Now,
    /// The change over that many seconds, which also delay the reply.
    Delta(u64),
    Text,
}

impl ProfileRequest {
    /// Parses a query and a form as `net/http/pprof` does: the first value of a name counts, the form before the query.
    /// Other names are ignored, and a `debug` that is no number is 0. Fails if `seconds` is no positive number, is
    /// above [`MAX_SECONDS`] (600), or comes with a `debug` other than 0.
    fn parse(query: &str, form: &[u8]) -> Result<Self, Problem> {
        let query = [parse_form(form), parse_form(query.as_bytes())].concat();
        let value = |name: &str| {
            let first = query.iter().find(|(known, _)| known == name);
            first.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let is_text = value("debug").parse::<i64>().is_ok_and(|debug| debug != 0);
        match (value("seconds"), is_text) {
            ("", true) => Ok(Self::Text),
            ("", false) => Ok(Self::Now),
            (seconds, is_text) => match seconds.parse() {
                Ok(1..) if is_text => Err(Problem::invalid(
                    "seconds and debug params are incompatible",
                )
                .remedy("leave one of them out")),
                Ok(seconds @ 1..=MAX_SECONDS) => Ok(Self::Delta(seconds)),
                Ok(1..) => Err(Problem::invalid(format!(
                    "seconds is at most {MAX_SECONDS}"
                ))),
                _ => Err(Problem::invalid(
                    "invalid value for \"seconds\" - must be a positive integer",
                )),
            },
        }
    }

    /// Sets the header that names the file in which the client saves the profile, as `net/http/pprof` does: `profile`,
    /// with `-delta` for a difference. Sets none for text.
    fn set_file_name(&self, profile: &str, headers: &mut HeaderMap) {
        let suffix = match self {
            Self::Now => "",
            Self::Delta(_) => "-delta",
            Self::Text => return,
        };
        let file = format!("attachment; filename=\"{profile}{suffix}\"");
        if let Ok(value) = HeaderValue::try_from(file) {
            headers.insert(CONTENT_DISPOSITION, value);
        }
    }
}

impl FromRequest<SharedHosts> for ProfileRequest {
    type Rejection = GoError;

    /// Parses the query and, if Go would read it, the form in the body. Fails if the body cannot be read, or a
    /// parameter is invalid.
    async fn from_request(request: Request, hosts: &SharedHosts) -> Result<Self> {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let has_form = has_form(request.method(), request.headers());
        let body = Bytes::from_request(request, hosts).await;
        let body = body.map_err(|rejection| {
            let (status, text) = (rejection.status(), rejection.body_text());
            Problem::new(status, "invalid_argument", text)
        })?;
        let form = if has_form { &body[..] } else { &[] };
        Ok(Self::parse(&query, form)?)
    }
}

/// Returns whether Go would read parameters from a request's body: the body is a URL-encoded form, and the method is
/// POST, PUT or PATCH.
fn has_form(method: &Method, headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_form = content_type.is_some_and(|kind| {
        let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default();
        let kind = kind.trim_ascii();
        kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
    });
    is_form && matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// Serves a heap profile whose default sample type is bytes in use.
async fn serve_heap(RequestHost(host): RequestHost, wanted: ProfileRequest) -> Result<Response> {
    let mut reply = serve_profile(&host, &wanted, "inuse_space").await?;
    wanted.set_file_name("heap", reply.headers_mut());
    Ok(reply)
}

/// Serves a heap profile whose default sample type is allocated bytes or, if the allocator did not count them
/// (`prof_accum` is off), bytes in use.
async fn serve_allocs(RequestHost(host): RequestHost, wanted: ProfileRequest) -> Result<Response> {
    let mut reply = match serve_profile(&host, &wanted, "alloc_space").await {
        Err(problem) if problem.is_client_error() => {
            serve_profile(&host, &wanted, "inuse_space").await?
        }
        profile => profile?,
    };
    wanted.set_file_name("allocs", reply.headers_mut());
    Ok(reply)
}

/// Serves a new profile as pprof, in which `sample_type` is the default, or as text. For a difference, takes two dumps
/// and waits between them for the requested time.
async fn serve_profile(
    host: &Gateway,
    wanted: &ProfileRequest,
    sample_type: &str,
) -> Result<Response, Problem> {
    let view = ReportQuery {
        sample_type: Some(sample_type.to_owned()),
        ..ReportQuery::default()
    };
    match wanted {
        ProfileRequest::Now => view.render_in_memory_pprof(host, None).await,
        ProfileRequest::Delta(seconds) => {
            let before = PendingDump::take_in_memory(host).await?;
            sleep(Duration::from_secs(*seconds)).await;
            view.render_in_memory_pprof(host, Some(before)).await
        }
        ProfileRequest::Text => {
            let text = stream_new_dump_as_tcmalloc(host).await?;
            Ok(([TEXT], text).into_response())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_those_of_go() {
        let check = |method: Method, content_type: Option<&str>, expected| {
            let mut headers = HeaderMap::new();
            let value = content_type.map(|text| HeaderValue::from_str(text).unwrap());
            headers.extend(value.map(|value| (CONTENT_TYPE, value)));
            assert_eq!(
                has_form(&method, &headers),
                expected,
                "{method} {content_type:?}"
            );
        };
        let form = "application/x-www-form-urlencoded";
        check(Method::POST, Some(form), true);
        check(Method::PUT, Some(form), true);
        check(
            Method::PATCH,
            Some("Application/X-WWW-Form-Urlencoded ; charset=utf-8"),
            true,
        );
        check(Method::GET, Some(form), false);
        check(Method::POST, Some("application/json"), false);
        check(Method::POST, None, false);
    }

    #[test]
    fn query_is_parsed_as_by_go() {
        let check = |query: &str, expected: Result<ProfileRequest, &str>| {
            let parsed = ProfileRequest::parse(query, b"").map_err(|problem| problem.error.message);
            let parsed = parsed.as_ref().map_err(String::as_str);
            assert_eq!(parsed, expected.as_ref().map_err(|text| *text), "{query}");
        };
        let no_number = "invalid value for \"seconds\" - must be a positive integer";
        check("", Ok(ProfileRequest::Now));
        check("debug=1", Ok(ProfileRequest::Text));
        check("debug=2&debug=0", Ok(ProfileRequest::Text));
        check("debug=%31", Ok(ProfileRequest::Text));
        check("debug=0&debug=1", Ok(ProfileRequest::Now));
        check("debug=", Ok(ProfileRequest::Now));
        check("debug=true", Ok(ProfileRequest::Now));
        check("gc=1&x", Ok(ProfileRequest::Now));
        check("seconds=", Ok(ProfileRequest::Now));
        check("seconds=5", Ok(ProfileRequest::Delta(5)));
        check("seconds=5&debug=true", Ok(ProfileRequest::Delta(5)));
        check(
            "seconds=5&debug=1",
            Err("seconds and debug params are incompatible"),
        );
        check("seconds=0", Err(no_number));
        check("seconds=-5", Err(no_number));
        check("seconds=5s", Err(no_number));
        check("seconds=0.5", Err(no_number));
        check("seconds=601", Err("seconds is at most 600"));
    }
}
