//! The control protocol: JSON-RPC 2.0, one object a line. PROTOCOL.md shows the bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use memprof_plugin_abi::{JSON, Status};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::body::{Body, INLINE_LIMIT};
use crate::reply::Reply;

/// The longest line that a host reads.
pub const FRAME_LIMIT: usize = 4096;

/// Method: sends a message to a plugin. Parameters: [`MessageParams`].
pub const MESSAGE: &str = "memprof.message";
/// Method: lists the plugins.
pub const PLUGINS: &str = "memprof.plugins";
/// Method: tells who the host is.
pub const HOST: &str = "memprof.host";
/// Method: Traffic Server's own; the outcome goes to the log. Parameters: [`BasicMessage`].
pub const BASIC_MESSAGE: &str = "admin_plugin_send_basic_msg";

/// A JSON-RPC error code: the line is no JSON.
pub const PARSE_ERROR: i32 = -32700;
/// A JSON-RPC error code: the JSON is no request, or the line is too long.
pub const INVALID_REQUEST: i32 = -32600;
/// A JSON-RPC error code.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// A JSON-RPC error code.
pub const INVALID_PARAMS: i32 = -32602;
/// Our error code: the host has no plugin of that name.
pub const UNKNOWN_PLUGIN: i32 = -32001;
/// Our error code: too many connections.
pub const TOO_MANY_CONNECTIONS: i32 = -32002;
/// Our error code: the host has no memory for the request, or for the connection.
pub const OUT_OF_MEMORY: i32 = -32003;

/// A request of JSON-RPC 2.0.
#[derive(Debug, Deserialize, Serialize)]
pub struct Request {
    /// `"2.0"`.
    pub jsonrpc: String,
    /// What the response repeats; a request without it gets no response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    /// One of the methods above, as [`MESSAGE`].
    pub method: String,
    /// The method's parameters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

/// The parameters of [`MESSAGE`].
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MessageParams {
    /// The plugin's name.
    pub plugin: String,
    /// The message's name.
    pub message: String,
    /// `key=value` words.
    #[serde(default)]
    pub args: String,
    /// How to pass the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<Delivery>,
}

/// How to pass a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// As a descriptor beside the line, also when it is small.
    Fd,
}

/// The parameters of [`BASIC_MESSAGE`].
#[derive(Debug, Deserialize, Serialize)]
pub struct BasicMessage {
    /// The plugin's name.
    pub tag: String,
    /// The message's name, a blank, and its arguments.
    pub data: String,
}

/// The result of [`HOST`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HostInfo {
    /// The process, by its number in the host's own pid namespace.
    pub pid: u32,
    /// The host's name.
    pub name: String,
    /// The whole command line.
    pub command: String,
    /// The program's version.
    pub version: String,
    /// When the control socket was opened: seconds since 1970, UTC.
    pub started: u64,
}

/// One element of the result of [`PLUGINS`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PluginInfo {
    /// The plugin's name.
    pub id: String,
    /// Its version; empty when it could not be loaded.
    pub version: String,
    /// The messages it answers.
    pub messages: Vec<String>,
    /// Why it could not be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The result of [`MESSAGE`], as a client reads it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct MessageResult {
    /// 0, or one of the negative codes of memprof.h.
    pub status_code: Status,
    /// What the body is.
    pub content_type: String,
    /// The body: a JSON value, or a string for text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The body's length, where it is passed as a descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Why a request was refused: a JSON-RPC error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RpcError {
    /// One of the codes of this module.
    pub code: i32,
    /// What happened, naming the thing.
    pub message: String,
}

impl RpcError {
    /// With one of the codes of this module.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Takes a message in one text apart: its name, a blank, its arguments. Traffic Server 9 sends
/// the terminating NUL too.
pub fn split_message(data: &str) -> (&str, &str) {
    let data = data.trim_end_matches('\0').trim();
    let (name, args) = data.split_once(char::is_whitespace).unwrap_or((data, ""));
    (name, args.trim_start())
}

/// Splits a reply into what goes into the line and what goes beside it.
pub fn message_result(reply: Reply, deliver: Option<Delivery>) -> (MessageResult, Option<Body>) {
    let Reply {
        status_code,
        content_type,
        body,
    } = reply;
    let content_type = content_type.into_owned();
    let size = body.len();
    let inline = match (deliver, body) {
        (None, Body::Bytes(bytes)) if bytes.len() <= INLINE_LIMIT => inline(&content_type, bytes),
        (None, Body::File(file, size)) if size <= INLINE_LIMIT as u64 => {
            inline_file(&content_type, file, size)
        }
        (_, body) => Err(body),
    };
    match inline {
        Ok(value) => (
            MessageResult {
                status_code,
                content_type,
                body: Some(value),
                size: None,
            },
            None,
        ),
        Err(body) => {
            let result = MessageResult {
                status_code,
                content_type,
                body: None,
                size: Some(size),
            };
            (result, Some(body))
        }
    }
}

/// A file that cannot be read is passed on, for the client to find out why.
fn inline_file(content_type: &str, file: File, size: u64) -> Result<Value, Body> {
    let mut bytes = vec![0; size as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => inline(content_type, bytes).map_err(|_| Body::File(file, size)),
        Err(_) => Err(Body::File(file, size)),
    }
}

fn inline(content_type: &str, bytes: Vec<u8>) -> Result<Value, Body> {
    // Read and written anew, not passed as it is (`serde_json::value::RawValue`): a line of the protocol holds no
    // newline, which a plugin's JSON may. It costs little, because a larger body goes beside the line, untouched.
    // A plugin may call its body JSON and be wrong; then it is text.
    let json = (content_type == JSON).then(|| serde_json::from_slice(&bytes));
    match json {
        Some(Ok(value)) => Ok(value),
        _ => String::from_utf8(bytes)
            .map(Value::String)
            .map_err(|error| Body::Bytes(error.into_bytes())),
    }
}

/// The line of a response with a result.
pub fn result_line(id: &Value, result: &impl Serialize) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string() + "\n"
}

/// The line of a response with an error.
pub fn error_line(id: &Value, error: &RpcError) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::{JSON, message_result, result_line, split_message};
    use crate::body::Body;
    use crate::reply::Reply;

    #[test]
    fn a_body_of_several_lines_is_sent_in_one() {
        let reply = Reply {
            status_code: 0,
            content_type: JSON.into(),
            body: Body::Bytes(b"{\n  \"a\": 1\n}\n".to_vec()),
        };
        let (result, _) = message_result(reply, None);
        let line = result_line(&1.into(), &result);
        assert!(line.ends_with("{\"a\":1}}}\n"), "{line}");
        assert_eq!(line.matches('\n').count(), 1, "{line}");
    }

    #[test]
    fn messages_in_one_text() {
        let check = |data: &str, expected| assert_eq!(split_message(data), expected, "{data:?}");
        check("dump", ("dump", ""));
        check("dump\0", ("dump", ""));
        check(" fetch  id=7 x=\"a b\" \n\0", ("fetch", "id=7 x=\"a b\""));
        check("", ("", ""));
        check("\0", ("", ""));
    }
}
