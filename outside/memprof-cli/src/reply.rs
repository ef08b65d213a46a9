//! A plugin's reply, with its body from the message or from a passed file.

use std::borrow::Cow;

use anyhow::Context;
use memprof_host::client::{Client, ReceivedBody};
use memprof_messages::PLUGIN;
use memprof_plugin_abi::{JSON, Status};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::{code_of_status, with_exit_code};
use crate::process_plugins::send_to_plugin;

/// Reply of a plugin.
#[derive(Debug)]
pub(crate) struct ParsedReply {
    /// 0, or a negative status code of memprof.h.
    pub(crate) status: Status,
    pub(crate) body: Body,
}

/// Body of a reply.
#[derive(Debug)]
pub(crate) enum Body {
    /// JSON.
    Object(Value),
    /// Text of another content type.
    Text(String),
    /// Bytes that are not UTF-8.
    Bytes(Vec<u8>),
}

impl ParsedReply {
    /// Reads the body of a reply: from the message itself, or from the file that the host passed.
    ///
    /// # Errors
    /// The passed file cannot be read.
    pub(crate) fn from_received(received: ReceivedBody) -> anyhow::Result<Self> {
        let status = received.result.status_code;
        let body = match (received.file.is_some(), received.result.body.as_ref()) {
            (false, Some(Value::String(_)) | None) | (true, _) => {
                let is_json = received.result.content_type == JSON;
                Body::from_bytes(
                    received.into_bytes().context("failed to read the reply")?,
                    is_json,
                )
            }
            (false, Some(object)) => Body::Object(object.clone()),
        };
        Ok(Self { status, body })
    }

    /// Returns the field of a JSON body; null if it is missing, or if the body is not JSON.
    pub(crate) fn field(&self, name: &str) -> &Value {
        match &self.body {
            Body::Object(object) => &object[name],
            Body::Text(_) | Body::Bytes(_) => &Value::Null,
        }
    }

    /// Converts the body to a type.
    ///
    /// # Errors
    /// The body is not JSON, or does not fit the type.
    pub(crate) fn into_typed<T: DeserializeOwned>(self) -> serde_json::Result<T> {
        serde_json::from_value(match self.body {
            Body::Object(object) => object,
            Body::Text(_) | Body::Bytes(_) => Value::Null,
        })
    }

    /// Returns the text of the reply for people: the field `text` of a JSON body, or else the whole body.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match &self.body {
            Body::Text(text) if text.is_empty() => "an empty reply".into(),
            Body::Text(text) => text.into(),
            Body::Bytes(bytes) => String::from_utf8_lossy(bytes),
            Body::Object(object) => match object["text"].as_str() {
                Some(text) => text.into(),
                None => object.to_string().into(),
            },
        }
    }

    /// Returns the reply if its status is 0. Otherwise returns an error with the text of the reply, and the exit code
    /// for its status.
    pub(crate) fn into_success(self) -> anyhow::Result<Self> {
        if self.status == 0 {
            return Ok(self);
        }
        Err(with_exit_code(code_of_status(self.status), self.text()))
    }
}

impl Body {
    /// Parses bytes as JSON if they claim to be (`is_json`) and are, else as text if they are UTF-8. Otherwise keeps
    /// them as bytes.
    fn from_bytes(bytes: Vec<u8>, is_json: bool) -> Self {
        let object = is_json.then(|| serde_json::from_slice(&bytes).ok());
        match object.flatten() {
            Some(object) => Self::Object(object),
            None => match String::from_utf8(bytes) {
                Ok(text) => Self::Text(text),
                Err(error) => Self::Bytes(error.into_bytes()),
            },
        }
    }
}

/// Sends a message to `memory_profile`, and waits for the reply. An error of the plugin is returned as a reply, with
/// its status.
pub(crate) fn send_request(
    client: &mut Client,
    message: &str,
    args: &str,
) -> anyhow::Result<ParsedReply> {
    ParsedReply::from_received(send_to_plugin(client, PLUGIN, message, args)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use memprof_host::client::PassedFile;
    use memprof_host::protocol::MessageResult;

    use super::*;

    fn received(content_type: &str, body: Option<Value>, passed: Option<&[u8]>) -> ReceivedBody {
        let file = passed.map(|bytes| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            PassedFile::new(file, bytes.len() as u64).unwrap()
        });
        ReceivedBody {
            result: MessageResult {
                status_code: 0,
                content_type: content_type.to_owned(),
                body,
                size: file.as_ref().map(PassedFile::len),
            },
            file,
        }
    }

    #[test]
    fn body_from_line_and_from_file_are_equal() {
        let status = serde_json::json!({ "text": "profiling is active", "profiling": "active" });
        let bytes = status.to_string();
        let passed = received(JSON, None, Some(bytes.as_bytes()));
        for received in [received(JSON, Some(status), None), passed] {
            let reply = ParsedReply::from_received(received).unwrap();
            assert_eq!(reply.field("profiling"), "active");
            assert_eq!(reply.text(), "profiling is active");
        }
        let text = Value::String("{\"profiling\": 1}".to_owned());
        let plain = ParsedReply::from_received(received("text/plain", Some(text), None)).unwrap();
        assert_eq!(plain.field("profiling"), &Value::Null);
        assert_eq!(plain.text(), "{\"profiling\": 1}");
        let bytes = ParsedReply::from_received(received("x", None, Some(b"\xff\x00"))).unwrap();
        assert!(matches!(bytes.body, Body::Bytes(_)), "{bytes:?}");
    }
}
