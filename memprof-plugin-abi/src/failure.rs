//! Why a plugin could not do what a message asked, in words and as a status.

use std::fmt;

use serde_json::{Value, json};

use crate::Status;
use crate::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_ALLOCATOR, MEMPROF_BUSY, MEMPROF_INVALID_ARGUMENT, MEMPROF_IO,
    MEMPROF_PANIC, MEMPROF_UNAVAILABLE, MEMPROF_UNKNOWN_MESSAGE, MEMPROF_UNSUPPORTED,
};

/// An error reply: what happened, and what the reader can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One of the negative status codes of [`raw`](crate::raw).
    pub status: Status,
    /// What happened, naming the thing.
    pub message: String,
    /// What would help; empty when nothing is known.
    pub remedy: String,
    /// For [`MEMPROF_BUSY`]: how long to wait before the next try.
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    /// A failure without a remedy.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            remedy: String::new(),
            retry_after_ms: None,
        }
    }

    /// The same with what would help.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The word for the status in a reply's `error.kind`.
    pub fn kind(&self) -> &'static str {
        match self.status {
            MEMPROF_UNKNOWN_MESSAGE => "unknown_message",
            MEMPROF_INVALID_ARGUMENT => "invalid_argument",
            MEMPROF_UNSUPPORTED => "unsupported",
            MEMPROF_ABI_MISMATCH => "abi_mismatch",
            MEMPROF_BUSY => "busy",
            MEMPROF_ALLOCATOR => "allocator",
            MEMPROF_PANIC => "panic",
            MEMPROF_UNAVAILABLE => "unavailable",
            MEMPROF_IO => "io",
            _ => "internal",
        }
    }

    /// The body of the error reply: a JSON object with `status`, `text` and `error`.
    pub fn to_json(&self) -> String {
        let error = self.to_value();
        json!({ "status": "error", "text": self.to_string(), "error": error }).to_string()
    }

    /// The reply's `error`: `{kind, message, remedy}`, and `retry_after_ms` where it is known.
    pub fn to_value(&self) -> Value {
        let mut error =
            json!({ "kind": self.kind(), "message": self.message, "remedy": self.remedy });
        if let Some(ms) = self.retry_after_ms {
            error["retry_after_ms"] = ms.into();
        }
        error
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
