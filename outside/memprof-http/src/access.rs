//! Access control: the right `Host`, no page of another origin, and the token if there is one.
//!
//! A page of another origin can make a browser send requests here, and even read the replies if its own host name
//! resolves to this address. So both the requested name and the requesting page must be this server's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, LOCATION, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::base_url::BaseUrl;
use crate::headers;
use crate::page::is_page;
use crate::peer::Peer;
use crate::problem::{Problem, Result};
use crate::token::Token;
use crate::trusted_proxy::{ProxyNetwork, forwarded_base_url};

/// Names by which this machine reaches itself.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Rules of access.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Host names of this server, besides those of the loopback address.
    pub names: Vec<String>,
    /// Address at which a proxy serves this server, whose pages may send requests too.
    pub base_url: Option<BaseUrl>,
    /// Proxies that name this address in the headers that they add.
    pub trust_proxy: Vec<ProxyNetwork>,
    /// Clients that are allowed.
    pub admits: AccessRule,
}

/// Clients that are allowed. The token is sent as `Authorization: Bearer TOKEN`, or in the path below `/t/TOKEN/`
/// by tools that send no headers; never in a query, which ends up in logs.
#[derive(Clone, Debug)]
pub enum AccessRule {
    /// This process's user and root, on this machine; and any client with the token, if there is one. Only
    /// [`serve`](crate::serve) knows the user of a connection.
    User(Option<Token>),
    /// Clients with the token.
    Bearer(Token),
    /// All clients: the server in which the router is mounted controls access.
    Everyone,
}

impl Default for AccessRule {
    /// Allows the server's user and root, without a token.
    fn default() -> Self {
        Self::User(None)
    }
}

/// Middleware that passes on allowed requests and rejects others. Removes the base URL's path and the token from the
/// path of a request. If nothing follows one of these two, redirects to the same path with a slash at its end. Adds the
/// security headers to every response.
pub(crate) async fn guard_access(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match access.admit_request(&mut request) {
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
    headers::add_security_headers(response.headers_mut());
    response
}

/// Result of a successful check.
#[derive(Debug)]
enum Admission {
    Allow,
    /// The page's links are relative to a path that ends in a slash.
    RedirectToSlash(String),
}

impl Access {
    /// Checks a request, and removes the base URL's path, the token and repeated slashes from its path. If nothing
    /// follows the base URL's path or the token, requests a redirect to the same path with a slash. Fails if the host
    /// name is unknown, the client is not allowed, or a web page of another origin made the browser send the request;
    /// such a page may only open a page by a link.
    fn admit_request(&self, request: &mut Request) -> Result<Admission> {
        let peer = request.extensions().get::<Peer>().copied();
        let base = self.base_url_for(request.headers(), peer)?;
        self.check_requested_host(request.uri(), request.headers(), base.as_ref())?;
        let sender = check_sender(request, base.as_ref())?;
        let admission = self.admit_client(request, peer, base);
        merge_slashes(request)?;
        match (&admission, sender) {
            (Ok(Admission::RedirectToSlash(_)), _) => admission,
            (_, Sender::Link) if !is_page(request.uri().path()) => Err(foreign_origin_error()),
            _ => admission,
        }
    }

    /// Checks that the client is allowed, by its user or by the token. Removes the path of `base` and the token from
    /// the request's path, and stores `base` in its extensions. If nothing follows one of these two in the path,
    /// requests a redirect to the same path with a slash. Fails if the client is not allowed.
    fn admit_client(
        &self,
        request: &mut Request,
        peer: Option<Peer>,
        base: Option<BaseUrl>,
    ) -> Result<Admission> {
        let is_user = peer.is_some_and(Peer::is_same_user_or_root);
        let (token, is_allowed) = match &self.admits {
            AccessRule::User(token) => (token.as_ref(), is_user),
            AccessRule::Bearer(token) => (Some(token), false),
            AccessRule::Everyone => (None, true),
        };
        let matches_token = |given: &str| token.is_some_and(|token| token.matches(given));
        if let Some(base) = base {
            if let Some(rest) = base.strip_path(request.uri().path()).map(str::to_owned) {
                if rest.is_empty() {
                    return Ok(Admission::RedirectToSlash(base.last_component_with_slash()));
                }
                set_request_path(request, &rest)?;
            }
            request.extensions_mut().insert(base);
        }
        let path = request.uri().path();
        let after_prefix = path.strip_prefix("/t/");
        let given = after_prefix.map(|rest| rest.split_once('/').unwrap_or((rest, "")));
        match given {
            // A client that is allowed as a user may send a wrong token: a page that was opened before this server
            // restarted sends an outdated one.
            Some((given, rest)) if is_allowed || matches_token(given) => {
                if path.len() == "/t/".len() + given.len() {
                    return Ok(Admission::RedirectToSlash(format!("{given}/")));
                }
                let rest = format!("/{rest}");
                set_request_path(request, &rest)?;
                Ok(Admission::Allow)
            }
            _ if is_allowed || bearer_token(request.headers()).is_some_and(matches_token) => {
                Ok(Admission::Allow)
            }
            _ => Err(unauthorized_error(token, peer)),
        }
    }

    /// Returns the address at which a proxy serves this server, from the headers that a trusted proxy adds, else from
    /// the configuration. `None` if neither names an address. Fails if the headers of a trusted proxy form no valid
    /// address.
    fn base_url_for(&self, headers: &HeaderMap, peer: Option<Peer>) -> Result<Option<BaseUrl>> {
        let address = peer.and_then(|peer| peer.address);
        let is_trusted =
            address.is_some_and(|ip| self.trust_proxy.iter().any(|proxy| proxy.contains(ip)));
        let forwarded = match is_trusted {
            true => forwarded_base_url(headers)?,
            false => None,
        };
        Ok(forwarded.or_else(|| self.base_url.clone()))
    }

    /// Checks that the request is for this server: exactly one `Host` header, with one of the server's names. If the
    /// request's URI contains an authority, that must have such a name, too. The authority of `base`, the address at a
    /// proxy, counts as a name.
    fn check_requested_host(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        base: Option<&BaseUrl>,
    ) -> Result<()> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let is_server_name = |name| self.is_server_name(name, base);
        let is_host_known = host.is_some_and(is_server_name) && hosts.next().is_none();
        // An absolute URI in the request line has precedence over Host (RFC 9112, 3.2.2).
        let is_uri_known = uri
            .authority()
            .is_none_or(|uri| is_server_name(uri.as_str()));
        if is_host_known && is_uri_known {
            return Ok(());
        }
        let message = format!("unknown host name {:?}", host.unwrap_or_default());
        Err(
            Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", message)
                .remedy("use localhost, or start the server with --allow-host NAME"),
        )
    }

    /// Returns whether an authority (`HOST` or `HOST:PORT`) has one of the server's names or the name in `base`, the
    /// address at a proxy. Ignores the port.
    fn is_server_name(&self, authority: &str, base: Option<&BaseUrl>) -> bool {
        let name = without_port(authority);
        let base = base.into_iter().map(|base| without_port(base.authority()));
        let names = self.names.iter().map(String::as_str).chain(LOOPBACK_NAMES);
        base.chain(names)
            .any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Who made the client send a request, as far as a browser tells.
#[derive(Clone, Copy, Debug)]
enum Sender {
    /// The user, a program or one of memprof's pages.
    Own,
    /// A link or frame of another site, which may open only pages.
    Link,
}

/// Rejects requests that a web page of another origin makes a browser send. Only a link passes, and the caller must
/// check its target with [`is_page`]. `base` is the address at a proxy, whose pages are allowed. If a header is
/// repeated, every value must be allowed.
fn check_sender(request: &Request, base: Option<&BaseUrl>) -> Result<Sender> {
    let headers = request.headers();
    // A value that is not ASCII becomes `?`, which nothing allows.
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
            || base.is_some_and(|base| base.matches_origin(origin))
    };
    let is_own_origin = texts(ORIGIN.as_str()).all(is_own);
    // Browsers send no Origin when they load an <img>, but `Sec-Fetch-Site` shows that it is of another site.
    let is_own_page = texts("sec-fetch-site").all(|site| matches!(site, "same-origin" | "none"));
    let mut modes = texts("sec-fetch-mode");
    let is_link = modes.next() == Some("navigate") && modes.next().is_none();
    match (is_own_origin, is_own_page) {
        (true, true) => Ok(Sender::Own),
        (true, false) if is_link && request.method() == Method::GET => Ok(Sender::Link),
        _ => Err(foreign_origin_error()),
    }
}

/// Returns the error for a request that a page of another origin made a browser send.
fn foreign_origin_error() -> Problem {
    let message = "requests from web pages of another origin are refused";
    Problem::new(StatusCode::FORBIDDEN, "foreign_origin", message).remedy(
        "if the page is memprof's own behind a proxy, start the server with --base-url and \
         the page's address, or with --trust-proxy and the proxy's",
    )
}

/// Returns the token in the header `Authorization: Bearer TOKEN`. `None` if the header is missing or malformed, or has
/// another scheme.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Removes the port from an authority (`HOST` or `HOST:PORT`), if there is one.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// Replaces a request's path, and keeps its query. Drops the authority of an absolute URI, which was checked before.
/// Fails with `invalid_argument` if the new path is malformed.
fn set_request_path(request: &mut Request, path: &str) -> Result<()> {
    let query = request.uri().query().map(|query| format!("?{query}"));
    let new = format!("{path}{}", query.unwrap_or_default());
    let new = new.parse::<PathAndQuery>();
    let new = new.map_err(|_| Problem::invalid("the path is malformed"))?;
    *request.uri_mut() = Uri::from(new);
    Ok(())
}

/// Merges consecutive slashes in a request's path: some tools append `/debug/pprof/heap` to an address that ends in a
/// slash. Go redirects such a request, brpc serves it.
fn merge_slashes(request: &mut Request) -> Result<()> {
    let path = request.uri().path();
    if !path.contains("//") {
        return Ok(());
    }
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    set_request_path(request, &merged)
}

/// Returns the error 401 for a client that is not allowed; `token` is the server's. If the client could be allowed as a
/// user, the message names its user. The remedy says how to be allowed.
fn unauthorized_error(token: Option<&Token>, peer: Option<Peer>) -> Problem {
    let other_user = peer.filter(|peer| !peer.is_same_user_or_root());
    let origin = other_user.map(|peer| format!("this connection comes from {}", peer.describe()));
    let bring = "send Authorization: Bearer TOKEN, or put /t/TOKEN in front of the path";
    let (message, remedy) = match (token, origin) {
        (Some(_), Some(origin)) => (
            format!("the token is missing or wrong, and {origin}"),
            bring,
        ),
        (Some(_), None) => ("the token is missing or wrong".to_owned(), bring),
        (None, Some(origin)) => (origin, "ask as the server's user, or as root"),
        (None, None) => (
            "this server does not know which user connects".to_owned(),
            "serve the router with memprof_http::serve, or set Access::admits",
        ),
    };
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn slashes_are_merged() {
        let check = |uri: &str, expected: &str| {
            let mut request = Request::builder().uri(uri).body(Body::empty()).unwrap();
            merge_slashes(&mut request).unwrap();
            assert_eq!(request.uri().to_string(), expected, "{uri}");
        };
        check("/debug/pprof/heap?x=//", "/debug/pprof/heap?x=//");
        check("//debug/pprof/heap", "/debug/pprof/heap");
        check(
            "//debug///pprof//heap//?debug=1",
            "/debug/pprof/heap/?debug=1",
        );
        check("///", "/");
        check("/a/%2F/b", "/a/%2F/b");
    }

    #[test]
    fn host_names_match_with_any_port() {
        let access = Access {
            names: vec!["Box.example".to_owned()],
            ..Access::default()
        };
        let base = "https://proxy.example:8443/x/".parse().unwrap();
        let check = |authority: &str, expected| {
            let found = access.is_server_name(authority, Some(&base));
            assert_eq!(found, expected, "{authority}");
        };
        check("localhost", true);
        check("LOCALHOST:7070", true);
        check("127.0.0.1:1", true);
        check("[::1]", true);
        check("[::1]:7070", true);
        check("box.example:80", true);
        check("proxy.example", true);
        check("", false);
        check(":7070", false);
        check("localhost.evil", false);
        check("evil:localhost", false);
        check("localhost:7070:7070", false);
        check("user@localhost", false);
        check("127.0.0.2", false);
    }
}
