//! Arguments of a request: its query and its body, a JSON object or a form, are one set.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde_json::{Map, Number, Value};

use crate::problem::{Problem, Result};

/// Arguments of a message, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestArguments(Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for RequestArguments {
    type Rejection = Problem;

    /// Reads the whole body, up to the limit of the route, and parses it with the query.
    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|rejection| {
            Problem::new(
                rejection.status(),
                "invalid_argument",
                rejection.body_text(),
            )
        })?;
        Self::parse(&query, &body)
    }
}

impl RequestArguments {
    /// Parses a query and a body into one set of arguments. The body is JSON if it begins as JSON does, else a form;
    /// its content type does not count, because curl calls every body a form. Fails if the body is malformed, a key
    /// cannot be an argument's, or a key occurs twice.
    pub(crate) fn parse(query: &str, body: &[u8]) -> Result<Self> {
        let body = body.trim_ascii();
        let body_arguments = match body.first() {
            Some(b'{' | b'[' | b'"') => parse_object(body)?,
            _ => parse_form(body),
        };
        let mut arguments = Self::default();
        for (key, value) in parse_form(query.as_bytes())
            .into_iter()
            .chain(body_arguments)
        {
            check_key(&key)?;
            if arguments.has_argument(&key) {
                let message = format!("the argument {key:?} is there twice");
                return Err(Problem::invalid(message).remedy("send each argument once"));
            }
            arguments.0.push((key, value));
        }
        Ok(arguments)
    }

    /// Returns whether the request has no argument, neither in its query nor in its body.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the request has an argument with the key `key`.
    pub(crate) fn has_argument(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    /// Adds the argument `key` with `value`, unless the request has one with that key.
    pub(crate) fn set_default(&mut self, key: &str, value: &str) {
        if !self.has_argument(key) {
            self.0.push((key.to_owned(), value.to_owned()));
        }
    }

    /// Returns the keys and values: those of the query, then those of the body.
    pub(crate) fn pairs(&self) -> Vec<(&str, &str)> {
        let pairs = self.0.iter();
        pairs.map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }
}

/// Parameters of a query for a handler that ignores unknown names.
#[derive(Debug)]
pub(crate) struct QueryParameters(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for QueryParameters {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self(parse_form(query.as_bytes())))
    }
}

impl QueryParameters {
    /// Returns the first value of a parameter. `None` if it is absent.
    pub(crate) fn first_value(&self, name: &str) -> Option<&str> {
        self.values(name).next()
    }

    /// Returns the last value of a parameter. `None` if it is absent.
    pub(crate) fn last_value(&self, name: &str) -> Option<&str> {
        self.values(name).next_back()
    }

    /// Returns the values of a parameter, in the order of the query.
    fn values(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        let named = self.0.iter().filter(move |(known, _)| known == name);
        named.map(|(_, value)| value.as_str())
    }
}

/// Decodes a URL-encoded form, `key=value&…`. The value of a key without `=` is empty.
pub(crate) fn parse_form(text: &[u8]) -> Vec<(String, String)> {
    form_urlencoded::parse(text).into_owned().collect()
}

/// Formats a number, without `.0` at its end: JSON Schema counts 79.0 as an integer, too.
fn format_plain_number(number: &Number) -> String {
    let text = number.to_string();
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Parses a JSON object into keys and values. Booleans become `on` or `off`. Fails if the body is no object, or a value
/// is null, an array or an object.
fn parse_object(body: &[u8]) -> Result<Vec<(String, String)>> {
    let object: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the body is not a JSON object: {error}")))?;
    let parse = |(key, value): (String, Value)| {
        let value = match value {
            Value::String(text) => text,
            Value::Number(number) => format_plain_number(&number),
            Value::Bool(on) => if on { "on" } else { "off" }.to_owned(),
            _ => {
                return Err(Problem::invalid(format!(
                    "the value of {key:?} is not plain"
                )));
            }
        };
        Ok((key, value))
    };
    object.into_iter().map(parse).collect()
}

/// Checks that `key` could be the name of an argument: it consists of lower-case ASCII letters and underscores, and is
/// not empty.
fn check_key(key: &str) -> Result<()> {
    let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    is_key
        .then_some(())
        .ok_or_else(|| Problem::invalid(format!("unknown argument {key:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_form_and_json_are_one_set() {
        let check = |query: &str, body: &str, expected: &[(&str, &str)]| {
            let parsed = RequestArguments::parse(query, body.as_bytes()).unwrap();
            assert_eq!(parsed.pairs(), expected, "{query:?} {body:?}");
        };
        check("", "", &[]);
        check("", " \n", &[]);
        check("", "{}", &[]);
        check("for=10m", "", &[("for", "10m")]);
        check("", "for=10m", &[("for", "10m")]);
        check("", " {\"for\": \"10m\"}\n", &[("for", "10m")]);
        check(
            "",
            "{\"files\": 16, \"log\": false}",
            &[("files", "16"), ("log", "off")],
        );
        check(
            "for=%31%30m&keep=off",
            "",
            &[("for", "10m"), ("keep", "off")],
        );
        check(
            "keep=off",
            "{\"for\":\"10m\"}",
            &[("keep", "off"), ("for", "10m")],
        );
        check(
            "keep=off",
            "name=a+b%20c",
            &[("keep", "off"), ("name", "a b c")],
        );
        check("for", "", &[("for", "")]);
    }

    #[test]
    fn malformed_and_repeated_arguments_are_refused() {
        let check = |query: &str, body: &str, expected: &str| {
            let problem = RequestArguments::parse(query, body.as_bytes()).unwrap_err();
            let message = &problem.error.message;
            assert!(
                message.starts_with(expected),
                "{query:?} {body:?}: {message}"
            );
        };
        check("for=1m&for=2m", "", "the argument \"for\" is there twice");
        check("for=1m", "for=1m", "the argument \"for\" is there twice");
        check(
            "for=1m",
            "{\"for\":\"1m\"}",
            "the argument \"for\" is there twice",
        );
        check("", "{\"for\":", "the body is not a JSON object");
        check("", "{\"for\":[1]}", "the value of \"for\" is not plain");
        check("", "[\"for\"]", "the body is not a JSON object");
        check("", "\"for\"", "the body is not a JSON object");
        check("FOR=1m", "", "unknown argument \"FOR\"");
        check("=1m", "", "unknown argument \"\"");
    }
}
