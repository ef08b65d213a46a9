//! Why a plugin could not do what a message asked, as facts and in words.

use std::fmt;

use serde_json::{Value, json};

use crate::{ErrorKind, Status};

/// An error reply: what happened, and what the reader can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For a program to branch on.
    pub kind: ErrorKind,
    /// What happened, naming the thing.
    pub message: String,
    /// What would help; empty when nothing is known.
    pub remedy: String,
    /// Why the operating system refused, as errno(3) has it, where it did.
    pub errno: Option<i32>,
    /// For [`ErrorKind::Busy`]: how long to wait before the next try.
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    /// A failure without a remedy. Its kind may also be given as a status of [`raw`](crate::raw).
    pub fn new(kind: impl Into<ErrorKind>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            remedy: String::new(),
            errno: None,
            retry_after_ms: None,
        }
    }

    /// The same with what would help.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// What the call that failed returns.
    pub fn status(&self) -> Status {
        self.kind.status()
    }

    /// The body of the error reply: a JSON object with `status`, `text` and `error`.
    pub fn to_json(&self) -> String {
        let error = self.to_value();
        json!({ "status": "error", "text": self.to_string(), "error": error }).to_string()
    }

    /// The reply's `error`: `{kind, message, remedy}`, and `errno` and `retry_after_ms` where they
    /// are known.
    pub fn to_value(&self) -> Value {
        let mut error =
            json!({ "kind": self.kind.word(), "message": self.message, "remedy": self.remedy });
        if let Some(errno) = self.errno {
            error["errno"] = errno.into();
        }
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
