//! Replies: one JSON object with `status`, `text` and what was asked for.

use memprof_core::{Error, ErrorKind};
use memprof_messages::{Answer, Reply as Full};
use memprof_plugin_abi::raw::{
    MEMPROF_ALLOCATOR, MEMPROF_BUSY, MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_IO,
    MEMPROF_UNAVAILABLE, MEMPROF_UNSUPPORTED,
};
use memprof_plugin_abi::{Failure, Reply};
use serde::Serialize;

/// How long a client that met a running dump should wait.
const RETRY_AFTER_MS: u64 = 500;

/// Answers with `fields` and the text that a bus prints which can only print.
pub(crate) fn ok(reply: &mut Reply<'_>, text: &str, fields: impl Serialize) -> Result<(), Failure> {
    answer(reply, Answer::Ok, text, fields)
}

fn answer(
    reply: &mut Reply<'_>,
    status: Answer,
    text: &str,
    fields: impl Serialize,
) -> Result<(), Failure> {
    let answer = Full {
        status,
        text: text.to_owned(),
        fields,
    };
    let json = serde_json::to_string(&answer)
        .map_err(|error| Failure::new(MEMPROF_INTERNAL, format!("reply: {error}")))?;
    reply.json(&json)
}

/// Answers with a failure that has `fields` beside it. The caller still returns the failure, for
/// its status.
pub(crate) fn refused(
    reply: &mut Reply<'_>,
    text: &str,
    failure: &Failure,
    fields: impl Serialize,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Refusal<T> {
        error: serde_json::Value,
        #[serde(flatten)]
        fields: T,
    }
    answer(
        reply,
        Answer::Error,
        text,
        Refusal {
            error: failure.to_value(),
            fields,
        },
    )
}

/// The failure that tells of an error of the core's.
pub(crate) fn failure(error: Error) -> Failure {
    let status = match error.kind {
        ErrorKind::Invalid => MEMPROF_INVALID_ARGUMENT,
        ErrorKind::Unsupported => MEMPROF_UNSUPPORTED,
        ErrorKind::Unavailable => MEMPROF_UNAVAILABLE,
        ErrorKind::Busy => MEMPROF_BUSY,
        ErrorKind::Allocator => MEMPROF_ALLOCATOR,
        ErrorKind::Io | ErrorKind::Memory => MEMPROF_IO,
        _ => MEMPROF_INTERNAL,
    };
    let mut failure = Failure::new(status, error.message).remedy(error.remedy);
    failure.retry_after_ms = (status == MEMPROF_BUSY).then_some(RETRY_AFTER_MS);
    failure
}
