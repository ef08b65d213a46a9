//! Why a plugin could not do what a message asked, as facts and in words.

use std::{fmt, io};

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
    /// What was being done when it failed: `open /var/lib/x`; none where the message was refused before
    /// anything was done.
    pub act: Option<Box<str>>,
    /// Why the operating system or the allocator refused, in its own words; `message` has them too.
    pub source: Option<Box<str>>,
    /// The same as a number, as errno(3) has it.
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
            act: None,
            source: None,
            errno: None,
            retry_after_ms: None,
        }
    }

    /// The operating system refused `act`, for example `"open /var/lib/x"`.
    pub fn io(act: &str, error: &io::Error) -> Self {
        Self {
            act: Some(act.into()),
            source: Some(error.to_string().into()),
            errno: error.raw_os_error(),
            ..Self::new(ErrorKind::Io, format!("failed to {act}: {error}"))
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

    /// The reply's `error`: `{kind, message, remedy}`, and `act`, `source`, `errno` and `retry_after_ms`
    /// where they are known.
    pub fn to_value(&self) -> Value {
        let mut error =
            json!({ "kind": self.kind.name(), "message": self.message, "remedy": self.remedy });
        let known = [
            ("act", self.act.as_deref().map(Value::from)),
            ("source", self.source.as_deref().map(Value::from)),
            ("errno", self.errno.map(Value::from)),
            ("retry_after_ms", self.retry_after_ms.map(Value::from)),
        ];
        for (key, fact) in known {
            if let Some(fact) = fact {
                error[key] = fact;
            }
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
