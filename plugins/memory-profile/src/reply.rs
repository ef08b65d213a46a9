//! Replies: one JSON object with `status`, `text` and what was asked for.

use memprof_core::Error;
use memprof_messages::{ErrorReply, ReplyEnvelope as Full, ReplyStatus};
use memprof_plugin_abi::{ErrorKind, Failure, Reply};
use rustix::io::Errno;
use serde::Serialize;

/// How long a client that met a running dump should wait.
const RETRY_AFTER_MS: u64 = 500;

/// Answers with `fields` and the text that a bus prints which can only print.
pub(crate) fn ok(reply: &mut Reply<'_>, text: &str, fields: impl Serialize) -> Result<(), Failure> {
    answer(reply, ReplyStatus::Ok, text, fields)
}

fn answer(
    reply: &mut Reply<'_>,
    status: ReplyStatus,
    text: &str,
    fields: impl Serialize,
) -> Result<(), Failure> {
    let answer = Full {
        status: status.into(),
        text: text.to_owned(),
        fields,
    };
    let json = serde_json::to_string(&answer)
        .map_err(|error| Failure::new(ErrorKind::Internal, format!("reply: {error}")))?;
    reply.json(&json)
}

/// Answers with a failure that has `fields` beside it. The caller still returns the failure, for
/// its status.
pub(crate) fn reply_failure(
    reply: &mut Reply<'_>,
    text: &str,
    failure: &Failure,
    fields: impl Serialize,
) -> Result<(), Failure> {
    let error = failure.into();
    answer(
        reply,
        ReplyStatus::Error,
        text,
        ErrorReply { error, fields },
    )
}

/// The failure that tells of an error of the core's.
pub(crate) fn failure(error: Error) -> Failure {
    let mut failure = Failure::new(error.kind, error.to_string());
    failure.errno = error.os_error().map(Errno::raw_os_error);
    failure.source = error.source.map(|cause| cause.to_string().into());
    failure.act = error.act.map(Into::into);
    failure.retry_after_ms = (error.kind == ErrorKind::Busy).then_some(RETRY_AFTER_MS);
    failure.remedy(error.remedy)
}
