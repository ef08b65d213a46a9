//! The reply of a plugin.

use std::borrow::Cow;

use memprof_plugin_abi::{Failure, JSON, Status};

use crate::body::Body;

/// The reply of a plugin to one message.
#[derive(Debug)]
pub struct Reply {
    /// 0, or one of the negative codes of memprof.h.
    pub status_code: Status,
    /// Media type of the body (RFC 9110).
    pub content_type: Cow<'static, str>,
    /// JSON, a text or a profile, according to the content type.
    pub body: Body,
}

impl Reply {
    /// Creates the reply with the error `failure`, as JSON.
    pub fn failed(failure: &Failure) -> Self {
        let body = Body::Bytes(failure.to_json().into_bytes());
        Self {
            status_code: failure.status(),
            content_type: JSON.into(),
            body,
        }
    }

    /// Converts the reply to text for people: the field `text` of a JSON object, otherwise the body. For a body that is
    /// a file, the text has its size and path. Read `status_code` before the call, which consumes the reply.
    pub fn into_text(self) -> String {
        let body = self.body.into_text();
        let text = serde_json::from_str(&body)
            .ok()
            .and_then(|json: serde_json::Value| {
                let text = json.get("text")?.as_str()?;
                Some(text.to_owned())
            });
        text.unwrap_or(body)
    }
}
