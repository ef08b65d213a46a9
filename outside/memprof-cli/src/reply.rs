//! A plugin's reply, whether its body came in the line or as a file beside it.

use std::borrow::Cow;

use anyhow::Context;
use memprof_host::client::{Client, ReceivedBody};
use memprof_messages::PLUGIN;
use memprof_plugin_abi::{JSON, Status};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::{code_of_status, with_exit_code};

/// What a plugin replied.
#[derive(Debug)]
pub(crate) struct ParsedReply {
    /// 0, or one of the negative codes of memprof.h.
    pub(crate) status: Status,
    pub(crate) body: Body,
}

/// A reply's body.
#[derive(Debug)]
pub(crate) enum Body {
    /// JSON.
    Object(Value),
    /// Text of another content type.
    Text(String),
    /// What is no text.
    Bytes(Vec<u8>),
}

impl ParsedReply {
    /// # Errors
    /// A passed file cannot be read.
    pub(crate) fn of(delivered: ReceivedBody) -> anyhow::Result<Self> {
        let status = delivered.result.status_code;
        let body = match (delivered.file.is_some(), delivered.result.body.as_ref()) {
            (false, Some(Value::String(_)) | None) | (true, _) => {
                let is_json = delivered.result.content_type == JSON;
                Body::of(
                    delivered.into_bytes().context("failed to read the reply")?,
                    is_json,
                )
            }
            (false, Some(object)) => Body::Object(object.clone()),
        };
        Ok(Self { status, body })
    }

    /// The field of that name; null where there is none.
    pub(crate) fn field(&self, name: &str) -> &Value {
        match &self.body {
            Body::Object(object) => &object[name],
            Body::Text(_) | Body::Bytes(_) => &Value::Null,
        }
    }

    /// The body as a type.
    ///
    /// # Errors
    /// The body is no JSON, or not of that type.
    pub(crate) fn typed<T: DeserializeOwned>(self) -> serde_json::Result<T> {
        serde_json::from_value(match self.body {
            Body::Object(object) => object,
            Body::Text(_) | Body::Bytes(_) => Value::Null,
        })
    }

    /// What a person reads of it.
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

    /// The reply itself, unless it is an error.
    pub(crate) fn ok(self) -> anyhow::Result<Self> {
        if self.status == 0 {
            return Ok(self);
        }
        Err(with_exit_code(code_of_status(self.status), self.text()))
    }
}

impl Body {
    fn of(bytes: Vec<u8>, is_json: bool) -> Self {
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

/// Sends a message to `memory_profile`; its own error is a reply.
pub(crate) fn send_request(
    client: &mut Client,
    message: &str,
    args: &str,
) -> anyhow::Result<ParsedReply> {
    ParsedReply::of(client.message(PLUGIN, message, args, None)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use memprof_host::client::PassedFile;
    use memprof_host::protocol::MessageResult;

    use super::*;

    fn delivered(content_type: &str, body: Option<Value>, passed: Option<&[u8]>) -> ReceivedBody {
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
    fn a_body_reads_the_same_wherever_it_came() {
        let status = serde_json::json!({ "text": "profiling is active", "profiling": "active" });
        let bytes = status.to_string();
        let passed = delivered(JSON, None, Some(bytes.as_bytes()));
        for delivered in [delivered(JSON, Some(status), None), passed] {
            let reply = ParsedReply::of(delivered).unwrap();
            assert_eq!(reply.field("profiling"), "active");
            assert_eq!(reply.text(), "profiling is active");
        }
        let text = Value::String("{\"profiling\": 1}".to_owned());
        let plain = ParsedReply::of(delivered("text/plain", Some(text), None)).unwrap();
        assert_eq!(plain.field("profiling"), &Value::Null);
        assert_eq!(plain.text(), "{\"profiling\": 1}");
        let bytes = ParsedReply::of(delivered("x", None, Some(b"\xff\x00"))).unwrap();
        assert!(matches!(bytes.body, Body::Bytes(_)), "{bytes:?}");
    }
}
