//! Proxies whose forwarded headers are believed.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::HeaderMap;
use axum::http::header::{FORWARDED, HOST};
use ipnet::IpNet;

use crate::base_url::BaseUrl;
use crate::problem::{Problem, Result};

/// Addresses of proxies: one such as `127.0.0.1`, or a network such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyNetwork(IpNet);

/// Reason why a text is no network.
#[derive(Debug, thiserror::Error)]
#[error("it is no address or network, such as 127.0.0.1, 10.0.0.0/8 or fd00::/8")]
pub struct ProxyNetworkError;

impl FromStr for ProxyNetwork {
    type Err = ProxyNetworkError;

    /// Parses one address, such as `127.0.0.1`, or a network such as `10.0.0.0/8`.
    fn from_str(text: &str) -> Result<Self, ProxyNetworkError> {
        let network = text.parse::<IpAddr>().map(IpNet::from);
        let network = network.or_else(|_| text.parse::<IpNet>());
        network.map(Self).map_err(|_| ProxyNetworkError)
    }
}

impl ProxyNetwork {
    /// Returns whether the address is in the network. An IPv4-mapped IPv6 address counts as its IPv4 address, too.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address) || self.0.contains(&address.to_canonical())
    }
}

/// Returns the address at which a proxy serves this server, from the headers that the proxy adds: `X-Forwarded-Host`,
/// `-Proto`, `-Port` and `-Prefix` or, for host and scheme, `Forwarded` (RFC 7239). Of several values, the last one
/// counts, because the nearest proxy has added it. A missing host is taken from `Host`, a missing scheme is http, and a
/// port counts only if the host has none.
///
/// `None` if these headers name no host, scheme, port or prefix. Fails if they form no valid address.
pub(crate) fn forwarded_base_url(headers: &HeaderMap) -> Result<Option<BaseUrl>> {
    let last = |name: &str| {
        let value = headers.get_all(name).into_iter().next_back()?;
        // A value that is not ASCII makes the address invalid.
        let text = value.to_str().unwrap_or("?");
        text.rsplit(',').next().map(str::trim)
    };
    let element = last(FORWARDED.as_str()).unwrap_or_default();
    let parameter = |name: &str| {
        let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(known, _)| known.trim().eq_ignore_ascii_case(name))?;
        Some(value.trim().trim_matches('"'))
    };
    let host = last("x-forwarded-host").or_else(|| parameter("host"));
    let scheme = last("x-forwarded-proto").or_else(|| parameter("proto"));
    let port = last("x-forwarded-port");
    let prefix = last("x-forwarded-prefix");
    if [host, scheme, port, prefix].iter().all(Option::is_none) {
        return Ok(None);
    }
    let host = host.or_else(|| last(HOST.as_str())).unwrap_or_default();
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| {
        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    let port = port.filter(|_| !has_port).map(|port| format!(":{port}"));
    let url = format!(
        "{}://{host}{}/{}",
        scheme.unwrap_or("http"),
        port.unwrap_or_default(),
        prefix.unwrap_or_default().trim_start_matches('/'),
    );
    let base = url.parse().map_err(|_| {
        Problem::invalid(format!("the proxy's headers make no address: {url:?}")).remedy(
            "have it send X-Forwarded-Host and X-Forwarded-Proto and, below a path, X-Forwarded-Prefix",
        )
    })?;
    Ok(Some(base))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn network_contains_addresses() {
        let check = |network: &str, address: &str, expected| {
            let network: ProxyNetwork = network.parse().unwrap();
            let found = network.contains(address.parse().unwrap());
            assert_eq!(found, expected, "{network:?} {address}");
        };
        check("127.0.0.1", "127.0.0.1", true);
        check("127.0.0.1", "127.0.0.2", false);
        check("127.0.0.1", "::ffff:127.0.0.1", true);
        check("127.0.0.0/8", "127.255.0.1", true);
        check("10.1.2.3/8", "10.9.9.9", true);
        check("10.0.0.0/8", "11.0.0.1", false);
        check("fd00::/8", "fd12::1", true);
        check("::1", "::1", true);
        check("::1", "127.0.0.1", false);
        for text in ["", "localhost", "127.0.0.1:80", "10.0.0.0/33", "10.0.0.0/"] {
            assert!(text.parse::<ProxyNetwork>().is_err(), "{text}");
        }
    }

    fn forwarded(lines: &[(&str, &str)]) -> Result<Option<BaseUrl>> {
        let headers = lines.iter().map(|(name, value)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        });
        forwarded_base_url(&headers.collect())
    }

    #[test]
    fn forwarded_headers_make_a_base() {
        let check = |lines: &[(&str, &str)], expected: Option<&str>| {
            let base = forwarded(lines).unwrap();
            let expected: Option<BaseUrl> = expected.map(|url| url.parse().unwrap());
            assert_eq!(base, expected, "{lines:?}");
        };
        check(&[("host", "a")], None);
        check(&[("x-forwarded-for", "10.0.0.1")], None);
        check(
            &[("x-forwarded-host", "a.example")],
            Some("http://a.example/"),
        );
        check(
            &[
                ("x-forwarded-host", "a.example:8443"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-port", "8443"),
                ("x-forwarded-prefix", "/tools/memprof"),
            ],
            Some("https://a.example:8443/tools/memprof"),
        );
        check(
            &[("host", "a.example"), ("x-forwarded-port", "81")],
            Some("http://a.example:81/"),
        );
        check(
            &[("host", "[::1]:8101"), ("x-forwarded-prefix", "x/")],
            Some("http://[::1]:8101/x"),
        );
        check(
            &[("x-forwarded-host", "evil.example, a.example")],
            Some("http://a.example/"),
        );
        check(
            &[
                ("x-forwarded-host", "evil.example"),
                ("x-forwarded-host", "a.example"),
            ],
            Some("http://a.example/"),
        );
        check(
            &[(
                "forwarded",
                "for=10.0.0.1, Host=\"a.example:81\";proto=https;for=x",
            )],
            Some("https://a.example:81/"),
        );
    }

    #[test]
    fn headers_that_make_no_address_are_refused() {
        for lines in [
            [("x-forwarded-host", "")],
            [("x-forwarded-host", "a b")],
            [("x-forwarded-proto", "ftp")],
            [("x-forwarded-host", "u@a.example")],
            [("x-forwarded-prefix", "/x?y")],
        ] {
            let problem = forwarded(&lines).unwrap_err();
            assert!(!problem.error.remedy.is_empty(), "{lines:?}");
        }
    }
}
