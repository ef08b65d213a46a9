//! The common parts of all JSON replies: a status, a text for people, and the fields.

use std::fmt;

use memprof_plugin_abi::{ErrorKind, Failure};
use serde::{Deserialize, Serialize};

use crate::open_enum::{OpenEnum, named_enums};

/// A reply: a text for people, and the fields for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "ReplyOf{T}")
)]
pub struct ReplyEnvelope<T> {
    /// Whether the message was carried out.
    pub status: OpenEnum<ReplyStatus>,
    /// Text for people. May have several lines.
    pub text: String,
    /// Fields of the message's reply type.
    #[serde(flatten)]
    pub fields: T,
}

/// Type of a reply. Most are the fields of a [`ReplyEnvelope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyType {
    /// [`ActivationResult`](crate::ActivationResult)
    Activation,
    /// [`DumpReport`](crate::DumpReport), or the bytes of a heap profile if `keep=off`.
    DumpReport,
    /// [`PerAllocator`](crate::PerAllocator) of [`Stats`](crate::Stats), or plain text if `format=text`.
    Stats,
    /// [`ProfilerStatus`](crate::ProfilerStatus)
    Status,
    /// [`Ledger`](crate::Ledger)
    Ledger,
    /// [`PurgeResult`](crate::PurgeResult)
    Purged,
    /// [`PerAllocator`](crate::PerAllocator) of [`BackgroundThreads`](crate::BackgroundThreads)
    Background,
    /// [`GdumpResult`](crate::GdumpResult)
    Gdumping,
    /// [`PerAllocator`](crate::PerAllocator) of [`RecentAllocations`](crate::RecentAllocations)
    Recent,
    /// [`DoctorReport`](crate::DoctorReport), even if a finding is an error.
    Findings,
    /// [`DumpList`](crate::DumpList)
    KeptDumps,
    /// The bytes of a heap profile.
    Profile,
    /// [`HelpReply`]
    Help,
    /// [`EmptyReply`]
    Nothing,
}

/// The reply to `detach`, which has no fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmptyReply {}

/// The reply to `help`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HelpReply {
    /// Messages in the order of [`MESSAGES`](crate::MESSAGES).
    pub messages: Vec<MessageHelp>,
}

/// A message, as `help` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageHelp {
    /// Name by which it is sent.
    pub name: String,
    /// Its arguments, as a person would type them.
    pub usage: String,
    /// Description in one line.
    pub help: String,
}

/// The error in the reply to a message that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// Kind of the error, for programs.
    pub kind: OpenEnum<ErrorKind>,
    /// Description of the failure. It names the object concerned.
    pub message: String,
    /// Remedy: one imperative sentence; empty if none is known.
    #[serde(default)]
    pub remedy: String,
    /// Action that failed, such as `open /var/lib/x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<String>,
    /// Cause in the words of the operating system or the allocator. `message` contains it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Number of the system error (errno(3)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Time after which a retry may succeed, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The fields of the reply to a message that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Refused{T}")
)]
pub struct ErrorReply<T> {
    /// The error.
    pub error: ErrorBody,
    /// Fields of the reply type that are returned despite the error.
    #[serde(flatten)]
    pub fields: T,
}

impl From<&Failure> for ErrorBody {
    fn from(failure: &Failure) -> Self {
        let Failure {
            kind,
            message,
            remedy,
            act,
            source,
            errno,
            retry_after_ms,
        } = failure.clone();
        Self {
            kind: kind.into(),
            message,
            remedy,
            act: act.map(Into::into),
            source: source.map(Into::into),
            errno,
            retry_after_ms,
        }
    }
}

impl ErrorBody {
    /// Parses the error in a reply. `None` if the reply is not a JSON object with an error.
    pub fn from_reply(reply: &[u8]) -> Option<Self> {
        let parsed = serde_json::from_slice::<ErrorReply<()>>(reply);
        parsed.ok().map(|parsed| parsed.error)
    }
}

/// Formats the error and its remedy as one line.
impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.remedy.as_str() {
            "" => Ok(()),
            remedy => write!(f, "; {remedy}"),
        }
    }
}

named_enums! {
    /// Status of a reply.
    ReplyStatus {
        /// The message was carried out.
        Ok = "ok",
        /// The message failed.
        Error = "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_body_is_read_from_reply() {
        let mut failure = Failure::new(ErrorKind::Io, "failed to open /x").remedy("mount it");
        let check = |failure: &Failure| {
            let read = ErrorBody::from_reply(failure.to_json().as_bytes());
            assert_eq!(read, Some(ErrorBody::from(failure)));
        };
        check(&failure);
        failure.act = Some("open /x".into());
        failure.source = Some("No space left on device (ENOSPC)".into());
        failure.errno = Some(28);
        failure.retry_after_ms = Some(500);
        check(&failure);
        assert_eq!(
            ErrorBody::from_reply(b"{\"status\":\"ok\",\"text\":\"\"}"),
            None
        );
    }
}
