//! Replies: one JSON object with `status`, `text` and the fields of the message.

use memprof_core::Error;
use memprof_messages::{ErrorReply, ReplyEnvelope, ReplyStatus};
use memprof_plugin_abi::{ErrorKind, Failure, Reply};
use rustix::io::Errno;
use serde::Serialize;

/// Time in milliseconds that a client should wait while a dump runs.
const RETRY_AFTER_MS: u64 = 500;

/// Replies with `fields`, and with the text that buses without JSON print.
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

/// Writes the JSON object of a reply: `status`, `text` and the `fields`.
///
/// # Errors
/// As for [`reply_success`].
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

/// Replies with a failure and `fields`. The caller must still return the failure, which sets the status.
///
/// # Errors
/// As for [`reply_success`].
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

/// Converts an error of memprof-core to a failure. One of kind `Busy` also says when to try again.
pub(crate) fn to_failure(error: Error) -> Failure {
    let mut failure = Failure::new(error.kind, error.to_string());
    failure.errno = error.os_error().map(Errno::raw_os_error);
    failure.source = error.source.map(|cause| cause.to_string().into());
    failure.act = error.act.map(Into::into);
    failure.retry_after_ms = (error.kind == ErrorKind::Busy).then_some(RETRY_AFTER_MS);
    failure.remedy(error.remedy)
}
