//! Address at which a proxy serves this server.

use std::str::FromStr;

use axum::http::Uri;

/// Base of every address in the browser, such as `https://tools.example/memprof/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// Scheme and authority, as browsers send them in `Origin`.
    origin: String,
    /// Host name with the port, if there is one.
    authority: String,
    /// Path without a slash at the end; empty for the root.
    path: String,
}

/// Reason why a text is no base URL.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is no http:// or https:// address without a query, such as https://tools.example/memprof/"
)]
pub struct BaseUrlError;

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    /// Parses an absolute `http` or `https` URL, and removes a default port and final slashes. Fails if the text is no
    /// such URL, or has a user name, a query or a fragment.
    fn from_str(text: &str) -> Result<Self, BaseUrlError> {
        let uri: Uri = text.parse().map_err(|_| BaseUrlError)?;
        let scheme = uri
            .scheme_str()
            .filter(|scheme| matches!(*scheme, "http" | "https"));
        let (Some(scheme), Some(authority), None) = (scheme, uri.authority(), uri.query()) else {
            return Err(BaseUrlError);
        };
        // A user name or a fragment is no part of an origin.
        if authority.as_str().contains('@') || text.contains('#') {
            return Err(BaseUrlError);
        }
        let default_port = if scheme == "http" { ":80" } else { ":443" };
        let authority = authority.as_str();
        // Browsers leave the default port out of `Origin` and `Host`.
        let authority = authority.strip_suffix(default_port).unwrap_or(authority);
        Ok(Self {
            origin: format!("{scheme}://{authority}"),
            authority: authority.to_owned(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl BaseUrl {
    /// Returns whether `origin`, the value of an `Origin` header, is the origin of this base URL. Ignores case.
    pub(crate) fn matches_origin(&self, origin: &str) -> bool {
        self.origin.eq_ignore_ascii_case(origin)
    }

    /// Returns the host name, with the port if the base URL has one.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns whether clients connect by HTTPS.
    pub(crate) fn is_https(&self) -> bool {
        self.origin.starts_with("https:")
    }

    /// Returns the path without a slash at the end; empty for the root.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Removes the base URL's path from the start of `path`, which is a request's: some proxies forward it unchanged.
    /// `None` if `path` is not below the base URL; empty if it is the base URL's path without a slash at its end.
    pub(crate) fn strip_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(&self.path)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    /// Returns the last component of the path, with a slash at its end. For a browser at the path without a final
    /// slash, this text is the relative link to the path with one.
    pub(crate) fn last_component_with_slash(&self) -> String {
        let (_, last) = self.path.rsplit_once('/').unwrap_or_default();
        format!("{last}/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_is_origin_and_path() {
        let check = |text: &str, origin: &str, path: &str| {
            let base: BaseUrl = text.parse().unwrap();
            assert_eq!((&*base.origin, &*base.path), (origin, path), "{text}");
        };
        check("https://a.example", "https://a.example", "");
        check("https://a.example/", "https://a.example", "");
        check(
            "http://a.example:8101/x/y/",
            "http://a.example:8101",
            "/x/y",
        );
        check("https://a.example:443/x", "https://a.example", "/x");
        check("http://[::1]:80/", "http://[::1]", "");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "a.example",
            "a.example/x",
            "/x",
            "ftp://a.example/",
            "https://",
            "https://a.example/?q",
            "https://a.example/#f",
            "https://u@a.example/",
            "https://a b/",
        ] {
            assert!(text.parse::<BaseUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn path_of_the_base_is_stripped() {
        let check = |base: &str, path: &str, expected: Option<&str>| {
            let base: BaseUrl = base.parse().unwrap();
            assert_eq!(base.strip_path(path), expected, "{path}");
        };
        check("http://a/x/y/", "/x/y/page.js", Some("/page.js"));
        check("http://a/x/y/", "/x/y/", Some("/"));
        check("http://a/x/y/", "/x/y", Some(""));
        check("http://a/x/y/", "/x/yz", None);
        check("http://a/x/y/", "/page.js", None);
        check("http://a/", "/page.js", Some("/page.js"));
    }
}
