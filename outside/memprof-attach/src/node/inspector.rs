//! The inspector: a list of its targets by HTTP, and the `DevTools` protocol of Chrome over a web socket.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::client::client_with_config;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{HandshakeError, Message, WebSocket};

use super::LoadFailure;
use super::connection::InspectorConnection;

/// How long a port may take to say that it is an inspector's. A thread of Node's own answers.
const ASKING: Duration = Duration::from_secs(1);
/// How long it may take to say goodbye.
const LEAVING: Duration = Duration::from_secs(1);
/// More than an inspector says by far.
const LIMIT: usize = 1 << 20;
const HEADERS: usize = 32;

/// The inspector of a Node, which listens.
#[derive(Debug)]
pub(super) struct Inspector {
    address: SocketAddr,
    /// Of its only target, the main thread.
    target: String,
}

impl Inspector {
    /// Asks a port whether it is an inspector's.
    pub(super) fn at(address: SocketAddr) -> Option<Self> {
        let target = target(&list(address).ok()?)?;
        Some(Self { address, target })
    }

    /// Has JavaScript evaluate an expression, which is null, or says what is wrong.
    pub(super) fn evaluate(&self, expression: &str, patience: Duration) -> Result<(), LoadFailure> {
        let connection = InspectorConnection::new(self.address, patience)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(LIMIT))
            .max_frame_size(Some(LIMIT));
        let url = format!("ws://{}/{}", self.address, self.target);
        let opened = client_with_config(url, connection, Some(config));
        let (mut socket, _) = opened.map_err(|error| match error {
            HandshakeError::Failure(error) => error.into(),
            HandshakeError::Interrupted(_) => LoadFailure::Late,
        })?;
        let answer = send_evaluate(&mut socket, expression);
        // Until it is closed on both sides: see `expression::FUNCTION`.
        socket.get_mut().extend(LEAVING);
        if socket.close(None).is_ok() {
            while socket.read().is_ok() {}
        }
        answer
    }
}

/// `GET /json/list`
fn list(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut connection = InspectorConnection::new(address, ASKING)?;
    let request =
        format!("GET /json/list HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let count = connection.read(&mut bytes)?;
        response.extend_from_slice(&bytes[..count]);
        // Node leaves it to the client to close the connection.
        if let Some(body) = body(&response) {
            return Ok(body.to_vec());
        }
        if count == 0 || response.len() > LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Of a response, once it is whole.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
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

/// The name of a Node's target, in its list of them.
fn target(list: &[u8]) -> Option<String> {
    let list: Value = serde_json::from_slice(list).ok()?;
    let of_node = list.as_array()?.iter().find(|of| of["type"] == "node")?;
    let id = of_node["id"].as_str()?;
    let is_plain = id
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_plain.then(|| id.to_owned())
}

fn send_evaluate(
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
            // A debugger that is there too does not stop at its exceptions.
            "silent": true,
        },
    });
    socket.send(Message::text(request.to_string()))?;
    loop {
        if let Message::Text(text) = socket.read()?
            && let Some(answer) = answer(&text)
        {
            return answer.map_err(LoadFailure::Because);
        }
    }
}

/// The answer, unless it is an event.
fn answer(message: &str) -> Option<Result<(), String>> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["id"] != 1 {
        return None;
    }
    let value = message.pointer("/result/result/value");
    let thrown = message.pointer("/result/exceptionDetails/exception/description");
    Some(match (thrown, value) {
        (None, Some(Value::Null)) => Ok(()),
        (None, Some(Value::String(why))) => Err(why.clone()),
        (Some(Value::String(error)), _) => Err(error.lines().next().unwrap_or_default().to_owned()),
        _ => Err(message.to_string()),
    })
}

impl From<tungstenite::Error> for LoadFailure {
    fn from(error: tungstenite::Error) -> Self {
        match error {
            tungstenite::Error::Io(error) => error.into(),
            error => Self::Because(format!("Node's inspector: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_taken_when_it_is_whole() {
        let check = |text: &str, expected: Option<&str>| {
            let found = body(text.as_bytes()).map(|body| str::from_utf8(body).unwrap());
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
    fn only_a_node_has_a_target() {
        let check = |list: &str, expected: Option<&str>| {
            assert_eq!(target(list.as_bytes()).as_deref(), expected, "{list}");
        };
        check(r#"[{"type": "node", "id": "c08e-a1"}]"#, Some("c08e-a1"));
        check(r#"[{"type": "page", "id": "c08e-a1"}]"#, None);
        check(r#"[{"type": "node", "id": "../json"}]"#, None);
        check("[]", None);
        check("{}", None);
        check("ok", None);
    }

    #[test]
    fn answers_and_events() {
        let check = |message: &str, expected: Option<Result<(), &str>>| {
            let expected = expected.map(|expected| expected.map_err(str::to_owned));
            assert_eq!(answer(message), expected, "{message}");
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
