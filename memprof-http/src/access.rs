//! Who may ask: the right `Host`, no foreign page, and the token where there is one.
//!
//! A page from elsewhere can make a browser send requests here, to a name that it lets resolve to
//! this address even with readable replies. So the name must be ours, and the asking page too.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, LOCATION, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::headers;
use crate::problem::{Problem, Result};
use crate::token::Token;

/// The names under which only this machine reaches itself.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The rules of access. The default suits a listener that only this machine can reach.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Names that clients call this server by, besides those of the loopback address.
    pub names: Vec<String>,
    /// What every request must bring: as `Authorization: Bearer TOKEN`, or below `/t/TOKEN/`, for
    /// tools that send no headers. Never in a query, which ends up in logs.
    pub token: Option<Token>,
}

/// Lets a request through that has the right to ask, without the token in its path.
pub(crate) async fn guard(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match access.admit(&mut request) {
        Ok(Admitted::Go) => next.run(request).await,
        Ok(Admitted::AddSlash(location)) => {
            (StatusCode::PERMANENT_REDIRECT, [(LOCATION, location)]).into_response()
        }
        Err(problem) => {
            let mut response = problem.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                let bearer = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, bearer);
            }
            response
        }
    };
    headers::protect(response.headers_mut());
    response
}

#[derive(Debug)]
enum Admitted {
    Go,
    /// The page's links are relative to an address that ends in a slash.
    AddSlash(String),
}

impl Access {
    fn admit(&self, request: &mut Request) -> Result<Admitted> {
        self.check_name(request.uri(), request.headers())?;
        check_page(request)?;
        let Some(token) = &self.token else {
            return Ok(Admitted::Go);
        };
        if bearer(request.headers()).is_some_and(|given| token.is(given)) {
            return Ok(Admitted::Go);
        }
        let path = request.uri().path();
        let (given, rest) = match path.strip_prefix("/t/") {
            Some(behind) => behind.split_once('/').unwrap_or((behind, "")),
            None => ("", ""),
        };
        if !token.is(given) {
            return Err(unauthorized());
        }
        if path.len() == "/t/".len() + given.len() {
            return Ok(Admitted::AddSlash(format!("{given}/")));
        }
        let query = request.uri().query().map(|query| format!("?{query}"));
        let rest = format!("/{rest}{}", query.unwrap_or_default());
        *request.uri_mut() = without_prefix(&rest)?;
        Ok(Admitted::Go)
    }

    fn check_name(&self, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let named = host.is_some_and(|host| self.has_name(host)) && hosts.next().is_none();
        // An absolute URI in the request line has precedence over Host (RFC 9112, 3.2.2).
        let addressed = uri
            .authority()
            .is_none_or(|uri| self.has_name(uri.as_str()));
        if named && addressed {
            return Ok(());
        }
        let message = format!("this is not the server {:?}", host.unwrap_or_default());
        Err(
            Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", message)
                .remedy("use localhost, or start the server with --allow-host NAME"),
        )
    }

    fn has_name(&self, authority: &str) -> bool {
        let name = without_port(authority);
        let names = self.names.iter().map(String::as_str).chain(LOOPBACK);
        names
            .into_iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Refuses what a page from elsewhere makes a browser send.
fn check_page(request: &Request) -> Result<()> {
    let headers = request.headers();
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(HOST.as_str()).unwrap_or_default();
    let is_own = |origin: &str| {
        let authority = origin
            .strip_prefix("http://")
            .or(origin.strip_prefix("https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    };
    let is_foreign_origin = text(ORIGIN.as_str()).is_some_and(|origin| !is_own(origin));
    // Browsers send no Origin with what an <img> loads, but tell that it is not ours.
    let is_foreign_page = match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => false,
        // A link to the page may be followed.
        Some(_) => !opens_page(request.method(), request.uri(), text("sec-fetch-mode")),
    };
    if !is_foreign_origin && !is_foreign_page {
        return Ok(());
    }
    let message = "a page from elsewhere may not ask this server";
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "foreign_origin",
        message,
    ))
}

fn opens_page(method: &Method, uri: &Uri, mode: Option<&str>) -> bool {
    method == Method::GET && mode == Some("navigate") && uri.path().ends_with('/')
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

fn without_prefix(rest: &str) -> Result<Uri> {
    let path = rest.parse::<PathAndQuery>();
    path.map(Uri::from)
        .map_err(|_| Problem::invalid("the path is malformed"))
}

fn unauthorized() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "the token is missing or wrong",
    )
    .remedy("send Authorization: Bearer TOKEN, or put /t/TOKEN in front of the path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports() {
        let access = Access {
            names: vec!["Box.example".to_owned()],
            token: None,
        };
        let check = |authority: &str, expected| {
            assert_eq!(access.has_name(authority), expected, "{authority}");
        };
        check("localhost", true);
        check("LOCALHOST:7070", true);
        check("127.0.0.1:1", true);
        check("[::1]", true);
        check("[::1]:7070", true);
        check("box.example:80", true);
        check("", false);
        check(":7070", false);
        check("localhost.evil", false);
        check("evil:localhost", false);
        check("localhost:7070:7070", false);
        check("user@localhost", false);
        check("127.0.0.2", false);
    }
}
