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
use crate::peer::Peer;
use crate::problem::{Problem, Result};
use crate::token::Token;

/// The names under which only this machine reaches itself.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The rules of access.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Names that clients call this server by, besides those of the loopback address.
    pub names: Vec<String>,
    /// Who may ask at all.
    pub admits: AccessRule,
}

/// Who may ask. The token comes as `Authorization: Bearer TOKEN`, or below `/t/TOKEN/`, for tools
/// that send no headers. Never in a query, which ends up in logs.
#[derive(Clone, Debug)]
pub enum AccessRule {
    /// This process's user and root, on this machine; and whoever brings the token, if there is
    /// one. Only [`serve`](crate::serve) knows whose a connection is.
    User(Option<Token>),
    /// Who brings the token.
    Bearer(Token),
    /// Everyone: the server that the router is mounted in has let them in.
    Everyone,
}

impl Default for AccessRule {
    fn default() -> Self {
        Self::User(None)
    }
}

/// Lets a request through that has the right to ask, without the token in its path.
pub(crate) async fn guard(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match access.admit(&mut request) {
        Ok(Admission::Allow) => next.run(request).await,
        Ok(Admission::RedirectToSlash(location)) => {
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
enum Admission {
    Allow,
    /// The page's links are relative to an address that ends in a slash.
    RedirectToSlash(String),
}

impl Access {
    fn admit(&self, request: &mut Request) -> Result<Admission> {
        self.check_host_header(request.uri(), request.headers())?;
        check_cross_site(request)?;
        let peer = request.extensions().get::<Peer>().copied();
        let is_user = peer.is_some_and(Peer::is_same_user_or_root);
        let (token, may) = match &self.admits {
            AccessRule::User(token) => (token.as_ref(), is_user),
            AccessRule::Bearer(token) => (Some(token), false),
            AccessRule::Everyone => (None, true),
        };
        let is_token = |given: &str| token.is_some_and(|token| token.matches(given));
        let path = request.uri().path();
        let behind = path.strip_prefix("/t/");
        let given = behind.map(|behind| behind.split_once('/').unwrap_or((behind, "")));
        match given {
            // A page that was opened before this server started again shows the token of then.
            Some((given, rest)) if may || is_token(given) => {
                if path.len() == "/t/".len() + given.len() {
                    return Ok(Admission::RedirectToSlash(format!("{given}/")));
                }
                let query = request.uri().query().map(|query| format!("?{query}"));
                let rest = format!("/{rest}{}", query.unwrap_or_default());
                *request.uri_mut() = without_prefix(&rest)?;
                Ok(Admission::Allow)
            }
            _ if may || bearer(request.headers()).is_some_and(is_token) => Ok(Admission::Allow),
            _ => Err(unauthorized(token, peer)),
        }
    }

    fn check_host_header(&self, uri: &Uri, headers: &HeaderMap) -> Result<()> {
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
        let message = format!("unknown host name {:?}", host.unwrap_or_default());
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

/// Refuses what a page from elsewhere makes a browser send. A header that is there twice is taken
/// for the worse of both.
fn check_cross_site(request: &Request) -> Result<()> {
    let headers = request.headers();
    let texts = |name: &str| {
        let values = headers.get_all(name).into_iter();
        values.map(|value| value.to_str().unwrap_or("?"))
    };
    let host = texts(HOST.as_str()).next().unwrap_or_default();
    let is_own = |origin: &str| {
        let authority = origin
            .strip_prefix("http://")
            .or(origin.strip_prefix("https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    };
    let is_own_origin = texts(ORIGIN.as_str()).all(is_own);
    // Browsers send no Origin with what an <img> loads, but tell that it is not ours.
    let is_own_page = texts("sec-fetch-site").all(|site| matches!(site, "same-origin" | "none"));
    // A link to the page may be followed.
    let mut modes = texts("sec-fetch-mode");
    let is_link = modes.next() == Some("navigate") && modes.next().is_none();
    if is_own_origin && (is_own_page || (is_link && is_navigation(request.method(), request.uri())))
    {
        return Ok(());
    }
    let message = "requests from web pages of another origin are refused";
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "foreign_origin",
        message,
    ))
}

fn is_navigation(method: &Method, uri: &Uri) -> bool {
    method == Method::GET && uri.path().ends_with('/')
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

fn unauthorized(token: Option<&Token>, peer: Option<Peer>) -> Problem {
    let stranger = peer.filter(|peer| !peer.is_same_user_or_root());
    let of_whom = stranger.map(|peer| format!("this connection comes from {}", peer.describe()));
    let bring = "send Authorization: Bearer TOKEN, or put /t/TOKEN in front of the path";
    let (message, remedy) = match (token, of_whom) {
        (Some(_), Some(of_whom)) => (
            format!("the token is missing or wrong, and {of_whom}"),
            bring,
        ),
        (Some(_), None) => ("the token is missing or wrong".to_owned(), bring),
        (None, Some(of_whom)) => (of_whom, "ask as the server's user, or as root"),
        (None, None) => (
            "this server does not know which user connects".to_owned(),
            "serve the router with memprof_http::serve, or set Access::admits",
        ),
    };
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports() {
        let access = Access {
            names: vec!["Box.example".to_owned()],
            admits: AccessRule::default(),
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
