//! The control protocol: JSON-RPC 2.0, one object a line. PROTOCOL.md shows the bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use memprof_plugin_abi::{JSON, Status, TEXT};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::body::{Body, INLINE_LIMIT};
use crate::reply::Reply;

/// Largest length, in bytes, of a line that a host reads.
pub const FRAME_LIMIT: usize = 4096;

/// Method: sends a message to a plugin. Parameters: [`MessageParams`].
pub const MESSAGE: &str = "memprof.message";
/// Method: lists the plugins as [`PluginInfo`].
pub const PLUGINS: &str = "memprof.plugins";
/// Method: returns the host's identity, [`HostInfo`].
pub const HOST: &str = "memprof.host";
/// Method of Traffic Server. The outcome is logged. Parameters: [`BasicMessage`].
pub const BASIC_MESSAGE: &str = "admin_plugin_send_basic_msg";

/// JSON-RPC error code: the line is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// JSON-RPC error code: the JSON is no request, or the line is too long.
pub const INVALID_REQUEST: i32 = -32600;
/// JSON-RPC error code: the host has no such method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// JSON-RPC error code: the method does not accept the parameters.
pub const INVALID_PARAMS: i32 = -32602;
/// Error code of memprof: the host has no plugin of that name.
pub const UNKNOWN_PLUGIN: i32 = -32001;
/// Error code of memprof: too many connections.
pub const TOO_MANY_CONNECTIONS: i32 = -32002;
/// Error code of memprof: the host has no memory for the request, or for the connection.
pub const OUT_OF_MEMORY: i32 = -32003;

/// A request of JSON-RPC 2.0.
#[derive(Debug, Deserialize, Serialize)]
pub struct Request {
    /// `"2.0"`.
    pub jsonrpc: String,
    /// Value that the response repeats. A request without it gets no response; one with `null` gets one.
    #[serde(
        default,
        deserialize_with = "deserialize_id",
        skip_serializing_if = "Option::is_none"
    )]
    pub id: Option<Value>,
    /// One of the methods of this module, such as [`MESSAGE`].
    pub method: String,
    /// Parameters of the method.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

/// Deserializes an id, which is `Some` even if it is `null`. Fails for a number that the response could not repeat,
/// because it has more digits than a 64-bit number.
fn deserialize_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    /// 2⁶³. `serde_json` keeps integers of 64 bits, and rounds any other to a float.
    const FIRST_ROUNDED: f64 = 9_223_372_036_854_775_808.0;
    let id = Value::deserialize(deserializer)?;
    let is_rounded = id.is_f64() && id.as_f64().is_some_and(|id| id.abs() >= FIRST_ROUNDED);
    match is_rounded {
        true => Err(D::Error::custom(
            "the id has more than 64 bits; send it as a string",
        )),
        false => Ok(Some(id)),
    }
}

/// The parameters of [`MESSAGE`].
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MessageParams {
    /// Name of the plugin.
    pub plugin: String,
    /// Name of the message.
    pub message: String,
    /// Arguments, `key=value` separated by blanks.
    #[serde(default)]
    pub args: String,
    /// Requested transfer of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<Delivery>,
}

/// Transfer of a reply's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// As a descriptor that accompanies the line, even if the body is small.
    Fd,
}

/// The parameters of [`BASIC_MESSAGE`].
#[derive(Debug, Deserialize, Serialize)]
pub struct BasicMessage {
    /// Name of the plugin.
    pub tag: String,
    /// Name of the message, a blank, and its arguments.
    pub data: String,
}

/// The result of [`HOST`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HostInfo {
    /// Id of the host process in its own pid namespace.
    pub pid: u32,
    /// Name of the host.
    pub name: String,
    /// Whole command line. A blank in the program's path has a backslash before it.
    pub command: String,
    /// Version of the program.
    pub version: String,
    /// Time at which the control socket was opened, in seconds since 1970, UTC.
    pub started: u64,
}

/// One element of the result of [`PLUGINS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct PluginInfo {
    /// Name of the plugin; of a file that was refused before its id was known, the file's name.
    pub id: String,
    /// Version of the plugin; empty if it is not known.
    pub version: String,
    /// Names of the messages that it accepts.
    pub messages: Vec<String>,
    /// Version of the contract that the plugin was built for, as `1.3`; empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub abi: String,
    /// Path of the file, as the config names it; empty for a plugin of a foreign program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Usage and help of the messages, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<MessageUsage>,
    /// Reason for which it could not be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Remedy, if the host knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Usage of one message of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct MessageUsage {
    /// Name of the message.
    pub name: String,
    /// Arguments as a person types them; may be empty.
    pub usage: String,
    /// Effect of the message, in one sentence.
    pub help: String,
}

impl MessageUsage {
    /// Formats the lines of this message in a list of messages: the message as a person types it, and its help, which
    /// is on a line of its own after a long usage.
    pub fn help_lines(&self) -> Vec<String> {
        let call = format!("{} {}", self.name, self.usage);
        let call = call.trim_end();
        let width = HELP_COLUMN - 1;
        match call.chars().count() <= width {
            true => vec![format!("{call:<width$} {}", self.help)],
            false => vec![call.to_owned(), format!("{:<width$} {}", "", self.help)],
        }
    }
}

/// Column, from 0, of the help in a list of messages.
const HELP_COLUMN: usize = 33;

/// Message that a host answers for a plugin that has no message of this name: it lists the plugin's messages.
pub const HELP: &str = "help";

impl PluginInfo {
    /// Creates the reply to [`HELP`]: a text with the usage and help of each message.
    pub(crate) fn help_reply(&self) -> Reply {
        let lines: Vec<_> = self
            .usage
            .iter()
            .flat_map(MessageUsage::help_lines)
            .collect();
        Reply {
            status_code: 0,
            content_type: TEXT.into(),
            body: Body::Bytes((lines.join("\n") + "\n").into_bytes()),
        }
    }
}

/// The result of [`MESSAGE`], as a client reads it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct MessageResult {
    /// 0, or one of the negative codes of memprof.h.
    pub status_code: Status,
    /// Media type of the body.
    pub content_type: String,
    /// Body: a JSON value, or a string for text. Absent if it is passed as a descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// Length of the body in bytes, if it is passed as a descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// The error of a JSON-RPC response.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RpcError {
    /// One of the codes of this module.
    pub code: i32,
    /// Description of the failure, naming the object concerned.
    pub message: String,
}

impl RpcError {
    /// Creates an error with one of the codes of this module.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Splits a text into a message's name and its arguments, at the first blank. Ignores terminating NUL bytes, which
/// Traffic Server 9 sends.
pub fn split_message(data: &str) -> (&str, &str) {
    let data = data.trim_end_matches('\0').trim();
    let (name, args) = data.split_once(char::is_whitespace).unwrap_or((data, ""));
    (name, args.trim_start())
}

/// Splits a reply into the result for the line, and the body that is passed beside it. That body is `None` if the
/// result contains it. `deliver` is the request of the client. With `None`, the result contains a body of at most
/// `INLINE_LIMIT` bytes, unless they are neither JSON nor UTF-8.
pub fn split_reply(reply: Reply, deliver: Option<Delivery>) -> (MessageResult, Option<Body>) {
    let Reply {
        status_code,
        content_type,
        body,
    } = reply;
    let content_type = content_type.into_owned();
    let size = body.len();
    let inline = match (deliver, body) {
        (None, Body::Bytes(bytes)) if bytes.len() <= INLINE_LIMIT => {
            inline_value(&content_type, bytes)
        }
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

/// Reads the `size` bytes of a file into a JSON value. If the file cannot be read, or is no UTF-8, returns the file as
/// a body. The client then gets the file itself, and the error of reading it.
fn inline_file(content_type: &str, file: File, size: u64) -> Result<Value, Body> {
    let mut bytes = vec![0; size as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => inline_value(content_type, bytes).map_err(|_| Body::File(file, size)),
        Err(_) => Err(Body::File(file, size)),
    }
}

/// Converts a body to a JSON value. Parses it if `content_type` is JSON; another body, or an invalid one, becomes a
/// string. Returns the bytes if that is impossible, because they are not UTF-8.
fn inline_value(content_type: &str, bytes: Vec<u8>) -> Result<Value, Body> {
    // The JSON is parsed and serialized again instead of copied (`serde_json::value::RawValue`), because a line of the
    // protocol contains no newline, but a plugin's JSON may. This costs little, because a larger body is passed beside
    // the line. A body that a plugin wrongly declares as JSON is sent as text.
    let json = (content_type == JSON).then(|| serde_json::from_slice(&bytes));
    match json {
        Some(Ok(value)) => Ok(value),
        _ => String::from_utf8(bytes)
            .map(Value::String)
            .map_err(|error| Body::Bytes(error.into_bytes())),
    }
}

/// Formats the line of a response with a result.
pub fn result_line(id: &Value, result: &impl Serialize) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string() + "\n"
}

/// Formats the line of a response with an error.
pub fn error_line(id: &Value, error: &RpcError) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::{JSON, MessageUsage, Request, result_line, split_message, split_reply};
    use crate::body::Body;
    use crate::reply::Reply;

    #[test]
    fn help_is_in_one_column() {
        let check = |usage: &str, expected: &[&str]| {
            let usage = MessageUsage {
                name: "dump".to_owned(),
                usage: usage.to_owned(),
                help: "Take one".to_owned(),
            };
            assert_eq!(usage.help_lines(), expected);
        };
        check("", &["dump                             Take one"]);
        check(
            "keep=on|off labels=thread12",
            &["dump keep=on|off labels=thread12 Take one"],
        );
        check(
            "keep=on|off labels=thread123",
            &[
                "dump keep=on|off labels=thread123",
                "                                 Take one",
            ],
        );
    }

    #[test]
    fn multi_line_body_is_sent_in_one_line() {
        let reply = Reply {
            status_code: 0,
            content_type: JSON.into(),
            body: Body::Bytes(b"{\n  \"a\": 1\n}\n".to_vec()),
        };
        let (result, _) = split_reply(reply, None);
        let line = result_line(&1.into(), &result);
        assert!(line.ends_with("{\"a\":1}}}\n"), "{line}");
        assert_eq!(line.matches('\n').count(), 1, "{line}");
    }

    #[test]
    fn response_repeats_the_id_or_the_request_is_refused() {
        let check = |id: &str, expected: Option<&str>| {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"m"{id}}}"#);
            let request: Result<Request, _> = serde_json::from_str(&text);
            let id = request.ok().map(|request| match request.id {
                Some(id) => id.to_string(),
                None => "absent".to_owned(),
            });
            assert_eq!(id.as_deref(), expected, "{text}");
        };
        check("", Some("absent"));
        check(r#","id":null"#, Some("null"));
        check(r#","id":"a""#, Some("\"a\""));
        check(r#","id":1.5"#, Some("1.5"));
        check(
            r#","id":18446744073709551615"#,
            Some("18446744073709551615"),
        );
        check(
            r#","id":-9223372036854775808"#,
            Some("-9223372036854775808"),
        );
        check(r#","id":18446744073709551616"#, None);
        check(r#","id":-9223372036854775809"#, None);
        check(r#","id":123456789012345678901234567890"#, None);
        check(r#","id":1e400"#, None);
    }

    #[test]
    fn split_message_separates_name_and_arguments() {
        let check = |data: &str, expected| assert_eq!(split_message(data), expected, "{data:?}");
        check("dump", ("dump", ""));
        check("dump\0", ("dump", ""));
        check(" fetch  id=7 x=\"a b\" \n\0", ("fetch", "id=7 x=\"a b\""));
        check("", ("", ""));
        check("\0", ("", ""));
    }
}
