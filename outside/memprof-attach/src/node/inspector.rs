//! Client of Node's inspector: a list of its targets by HTTP, and the `DevTools` protocol of Chrome over a web
//! socket.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::client::client_with_config;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{HandshakeError, Message, WebSocket};

use super::LoadFailure;
use super::connection::InspectorConnection;

/// Timeout for a port to reply as an inspector does. A separate thread of Node replies.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for the inspector to close the web socket.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest response or message, in bytes: far more than an inspector sends.
const MAX_RESPONSE_SIZE: usize = 1 << 20;
const MAX_HEADERS: usize = 32;

/// An inspector that listens.
#[derive(Debug)]
pub(super) struct Inspector {
    address: SocketAddr,
    /// ID of its only target, the main thread.
    target_id: String,
}

impl Inspector {
    /// Requests the list of targets at an address. `None` unless an inspector replies within a second, and has a Node
    /// target.
    pub(super) fn find(address: SocketAddr) -> Option<Self> {
        let target_id = node_target_id(&list_targets(address).ok()?)?;
        Some(Self { address, target_id })
    }

    /// Makes JavaScript evaluate an expression, whose value must be null or an error text. Fails with that text, or
    /// with [`LoadFailure::Late`] after `timeout`.
    pub(super) fn evaluate(&self, expression: &str, timeout: Duration) -> Result<(), LoadFailure> {
        let connection = InspectorConnection::connect(self.address, timeout)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_RESPONSE_SIZE))
            .max_frame_size(Some(MAX_RESPONSE_SIZE));
        let url = format!("ws://{}/{}", self.address, self.target_id);
        let opened = client_with_config(url, connection, Some(config));
        let (mut socket, _) = opened.map_err(|error| match error {
            HandshakeError::Failure(error) => error.into(),
            HandshakeError::Interrupted(_) => LoadFailure::Late,
        })?;
        let reply = request_evaluation(&mut socket, expression);
        // The evaluated script closes the inspector only once no client is connected (`FUNCTION` of load_script.rs).
        socket.get_mut().extend_deadline(CLOSE_TIMEOUT);
        if socket.close(None).is_ok() {
            while socket.read().is_ok() {}
        }
        reply
    }
}

/// Requests `GET /json/list` of an inspector, and returns the body of the response: its targets as JSON. Fails if the
/// peer sends no response within a second, or more than 1 MiB.
fn list_targets(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut connection = InspectorConnection::connect(address, LIST_TIMEOUT)?;
    let request =
        format!("GET /json/list HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let count = connection.read(&mut bytes)?;
        response.extend_from_slice(&bytes[..count]);
        // Node leaves closing the connection to the client.
        if let Some(body) = complete_body(&response) {
            return Ok(body.to_vec());
        }
        if count == 0 || response.len() > MAX_RESPONSE_SIZE {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Returns the body of an HTTP response with a Content-Length; `None` unless it is complete and its status is 200.
fn complete_body(bytes: &[u8]) -> Option<&[u8]> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(start) = response.parse(bytes).ok()? else {
        return None;
    };
    let is_length =
        |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("content-length");
    let length = response.headers.iter().find(is_length)?.value;
    let length: usize = str::from_utf8(length).ok()?.parse().ok()?;
    let end = start.checked_add(length)?;
    bytes.get(start..end).filter(|_| response.code == Some(200))
}

/// Finds the ID of the Node target in a list of targets (JSON). `None` if there is none, or if the ID, which becomes a
/// part of a URL, has other characters than hexadecimal digits and `-`.
fn node_target_id(list: &[u8]) -> Option<String> {
    let list: Value = serde_json::from_slice(list).ok()?;
    let target = list
        .as_array()?
        .iter()
        .find(|target| target["type"] == "node")?;
    let id = target["id"].as_str()?;
    let is_plain = id
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_plain.then(|| id.to_owned())
}

/// Sends the request `Runtime.evaluate`, and waits for its reply; events before it are ignored. Fails with the error
/// text that JavaScript returned.
fn request_evaluation(
    socket: &mut WebSocket<InspectorConnection>,
    expression: &str,
) -> Result<(), LoadFailure> {
    let request = json!({
        "id": 1,
        "method": "Runtime.evaluate",
        "params": {
            "expression": expression,
            "includeCommandLineAPI": true,
            "returnByValue": true,
            // Without it, a connected debugger would stop at the script's exceptions.
            "silent": true,
        },
    });
    socket.send(Message::text(request.to_string()))?;
    loop {
        if let Message::Text(text) = socket.read()?
            && let Some(reply) = parse_reply(&text)
        {
            return reply.map_err(LoadFailure::Message);
        }
    }
}

/// Parses the reply to the request: `Ok` if the value is null. Otherwise the error: the value's text, the first line of
/// an exception, or the whole message. `None` for an event or invalid JSON.
fn parse_reply(message: &str) -> Option<Result<(), String>> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["id"] != 1 {
        return None;
    }
    let value = message.pointer("/result/result/value");
    let thrown = message.pointer("/result/exceptionDetails/exception/description");
    Some(match (thrown, value) {
        (None, Some(Value::Null)) => Ok(()),
        (None, Some(Value::String(error))) => Err(error.clone()),
        (Some(Value::String(error)), _) => Err(error.lines().next().unwrap_or_default().to_owned()),
        _ => Err(message.to_string()),
    })
}

impl From<tungstenite::Error> for LoadFailure {
    fn from(error: tungstenite::Error) -> Self {
        match error {
            tungstenite::Error::Io(error) => error.into(),
            error => Self::Message(format!("Node's inspector: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_parsed_once_complete() {
        let check = |text: &str, expected: Option<&str>| {
            let found = complete_body(text.as_bytes()).map(|body| str::from_utf8(body).unwrap());
            assert_eq!(found, expected, "{text}");
        };
        let node = "HTTP/1.0 200 OK\r\nContent-Type: application/json; charset=UTF-8\r\n\
                    Cache-Control: no-cache\r\nContent-Length: 2\r\n\r\n";
        check(&format!("{node}[]"), Some("[]"));
        check(&format!("{node}["), None);
        check(&node[..40], None);
        check(
            "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
            None,
        );
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            None,
        );
        check("SSH-2.0-OpenSSH_9.2p1\r\n", None);
    }

    #[test]
    fn only_node_has_a_target() {
        let check = |list: &str, expected: Option<&str>| {
            assert_eq!(
                node_target_id(list.as_bytes()).as_deref(),
                expected,
                "{list}"
            );
        };
        check(r#"[{"type": "node", "id": "c08e-a1"}]"#, Some("c08e-a1"));
        check(r#"[{"type": "page", "id": "c08e-a1"}]"#, None);
        check(r#"[{"type": "node", "id": "../json"}]"#, None);
        check("[]", None);
        check("{}", None);
        check("ok", None);
    }

    #[test]
    fn replies_are_parsed_and_events_ignored() {
        let check = |message: &str, expected: Option<Result<(), &str>>| {
            let expected = expected.map(|expected| expected.map_err(str::to_owned));
            assert_eq!(parse_reply(message), expected, "{message}");
        };
        let of_null =
            r#"{"id":1,"result":{"result":{"type":"object","subtype":"null","value":null}}}"#;
        check(of_null, Some(Ok(())));
        let of_text = r#"{"id":1,"result":{"result":{"type":"string","value":"no"}}}"#;
        check(of_text, Some(Err("no")));
        let thrown = r#"{"id":1,"result":{"result":{},"exceptionDetails":{"exception":
            {"description":"ReferenceError: require is not defined\n    at <anonymous>:1:1"}}}}"#;
        check(thrown, Some(Err("ReferenceError: require is not defined")));
        let refused = r#"{"id":1,"error":{"code":-32601,"message":"gone"}}"#;
        check(refused, Some(Err(refused)));
        check(r#"{"method":"Runtime.consoleAPICalled","params":{}}"#, None);
        check("nonsense", None);
    }
}
