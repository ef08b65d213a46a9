//! The error of a message, for programs and for people.

use std::{fmt, io};

use serde_json::{Value, json};

use crate::{ErrorKind, Status};

/// An error reply: what failed, and what the reader can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kind of the error, for a program to branch on.
    pub kind: ErrorKind,
    /// Action and object that failed.
    pub message: String,
    /// Remedy: one imperative sentence, empty if nothing helps.
    pub remedy: String,
    /// Operation that failed, such as `open /var/lib/x`. `None` if the message was rejected before it began.
    pub act: Option<Box<str>>,
    /// Reason in the words of the operating system or the allocator. It is also part of `message`.
    pub source: Option<Box<str>>,
    /// Error number of the operating system (errno(3)).
    pub errno: Option<i32>,
    /// Time to wait before the next attempt, in milliseconds. Only for [`ErrorKind::Busy`].
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    /// Creates a failure without a remedy. `kind` may also be a status from [`raw`](crate::raw).
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

    /// Creates a failure of kind `Io`: the operating system refused `act`, for example `"open /var/lib/x"`.
    pub fn io(act: &str, error: &io::Error) -> Self {
        Self {
            act: Some(act.into()),
            source: Some(error.to_string().into()),
            errno: error.raw_os_error(),
            ..Self::new(ErrorKind::Io, format!("failed to {act}: {error}"))
        }
    }

    /// Sets the remedy, which is displayed after the message.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Returns the status that the failed call returns through the ABI.
    pub fn status(&self) -> Status {
        self.kind.status()
    }

    /// Returns the body of the error reply: a JSON object with `status`, `text` (message and remedy) and `error`.
    pub fn to_json(&self) -> String {
        let error = self.to_value();
        json!({ "status": "error", "text": self.to_string(), "error": error }).to_string()
    }

    /// Returns the value of the reply's `error`: `{kind, message, remedy}`, plus `act`, `source`, `errno` and
    /// `retry_after_ms` if set.
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
