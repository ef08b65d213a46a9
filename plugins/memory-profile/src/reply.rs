//! Writes replies: one JSON object with `status`, `text` and the fields of the message.

use memprof_core::Error;
use memprof_messages::{ErrorReply, ReplyEnvelope, ReplyStatus};
use memprof_plugin_abi::{ErrorKind, Failure, Reply};
use rustix::io::Errno;
use serde::Serialize;

/// Time that a client should wait if a dump is running, in milliseconds.
const RETRY_AFTER_MS: u64 = 500;

/// Replies with `fields`, and with `text` for buses that do not print JSON.
///
/// # Errors
/// `Internal`: `fields` cannot be serialized, or the host does not accept the reply.
pub(crate) fn reply_success(
    reply: &mut Reply<'_>,
    text: &str,
    fields: impl Serialize,
) -> Result<(), Failure> {
    write_reply(reply, ReplyStatus::Ok, text, fields)
}

/// Writes the JSON object of a reply: `status`, `text` and `fields`.
///
/// # Errors
/// `Internal`: `fields` cannot be serialized, or the host does not accept the reply.
fn write_reply(
    reply: &mut Reply<'_>,
    status: ReplyStatus,
    text: &str,
    fields: impl Serialize,
) -> Result<(), Failure> {
    let envelope = ReplyEnvelope {
        status: status.into(),
        text: text.to_owned(),
        fields,
    };
    let json = serde_json::to_string(&envelope)
        .map_err(|error| Failure::new(ErrorKind::Internal, format!("reply: {error}")))?;
    reply.json(&json)
}

/// Replies with a failure and `fields`. The caller must also return the failure, which sets the status of the message.
///
/// # Errors
/// `Internal`: `fields` cannot be serialized, or the host does not accept the reply.
pub(crate) fn reply_failure(
    reply: &mut Reply<'_>,
    text: &str,
    failure: &Failure,
    fields: impl Serialize,
) -> Result<(), Failure> {
    let error = failure.into();
    write_reply(
        reply,
        ReplyStatus::Error,
        text,
        ErrorReply { error, fields },
    )
}

/// Converts an error of memprof-core to a failure. For kind `Busy`, adds the time after which to retry.
pub(crate) fn to_failure(error: Error) -> Failure {
    let mut failure = Failure::new(error.kind, error.to_string());
    failure.errno = error.errno().map(Errno::raw_os_error);
    failure.source = error.source.map(|cause| cause.to_string().into());
    failure.act = error.act.map(Into::into);
    failure.retry_after_ms = (error.kind == ErrorKind::Busy).then_some(RETRY_AFTER_MS);
    failure.remedy(error.remedy)
}
