//! What every JSON reply has: a status, a text for people, and the fields.

use std::fmt;

use memprof_plugin_abi::{ErrorKind, Failure};
use serde::{Deserialize, Serialize};

use crate::open_enum::{OpenEnum, words};

/// A reply: what a person reads, and the fields that a program reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "ReplyOf{T}")
)]
pub struct ReplyEnvelope<T> {
    /// Whether it did what was asked.
    pub status: OpenEnum<Answer>,
    /// For people; may have several lines.
    pub text: String,
    /// Of the message's own reply type.
    #[serde(flatten)]
    pub fields: T,
}

/// The types of replies. Most are the fields of a [`ReplyEnvelope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyType {
    /// [`ActivationResult`](crate::ActivationResult)
    Activation,
    /// [`DumpReport`](crate::DumpReport); with `keep=off` a profile's bytes.
    DumpReport,
    /// [`PerAllocator`](crate::PerAllocator) of [`Stats`](crate::Stats); with `format=text` plain text.
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
    /// [`DoctorReport`](crate::DoctorReport), also where the message is refused.
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

/// What `detach` is answered with: no field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmptyReply {}

/// What `help` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HelpReply {
    /// In the order of the table.
    pub messages: Vec<MessageHelp>,
}

/// A message, as `help` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageHelp {
    /// What it is sent as.
    pub name: String,
    /// Its arguments, as a person would type them.
    pub usage: String,
    /// What it does, in one line.
    pub help: String,
}

/// What a refused message is answered with, as `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// For a program to branch on.
    pub kind: OpenEnum<ErrorKind>,
    /// What happened, naming the thing.
    pub message: String,
    /// What would help; empty where nothing is known.
    #[serde(default)]
    pub remedy: String,
    /// What was being done when it failed: `open /var/lib/x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<String>,
    /// Why the operating system or the allocator refused, in its own words; `message` has them too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The same as a number, as errno(3) has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// How long to wait before the next try, where that would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The fields of a refused message's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Refused{T}")
)]
pub struct ErrorReply<T> {
    /// Why.
    pub error: ErrorBody,
    /// What it tells nevertheless.
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
    /// The error of a reply, where the reply is one that has one.
    pub fn from_reply(reply: &[u8]) -> Option<Self> {
        let refused = serde_json::from_slice::<ErrorReply<()>>(reply);
        refused.ok().map(|refused| refused.error)
    }
}

/// What happened and what would help, in one line.
impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.remedy.as_str() {
            "" => Ok(()),
            remedy => write!(f, "; {remedy}"),
        }
    }
}

words! {
    /// The outcome of a message.
    Answer {
        /// It did what was asked.
        Ok = "ok",
        /// It did not.
        Error = "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reads_what_a_plugin_wrote() {
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
