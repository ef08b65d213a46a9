//! What went wrong, as a status code and in words.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use memprof_messages::{ErrorKind as Kind, Refusal, Word};
use memprof_report::{Error, ErrorKind};
use serde_json::json;

use crate::target::{Answer, Gone};

pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// How long a client should wait for a host that went away, in seconds.
const HOST_RETRY: u64 = 2;
/// How long one should wait that came while too many others were served, in seconds.
const OVERLOAD_RETRY: u64 = 1;

/// An error reply: `{"error":{kind, message, remedy}}`.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) kind: Cow<'static, str>,
    pub(crate) message: String,
    pub(crate) remedy: String,
    /// Why the system refused the plugin, where it did.
    pub(crate) errno: Option<i32>,
    /// Seconds.
    retry_after: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: kind.into(),
            message: message.into(),
            remedy: String::new(),
            errno: None,
            retry_after: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// Too much is asked for at the same time.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(OVERLOAD_RETRY),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
                .remedy("try again in a moment")
        }
    }

    /// The host does not answer.
    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(HOST_RETRY),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "host_gone", message)
                .remedy("start it again; this page finds it by itself")
        }
    }

    #[must_use]
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Whether the plugin could not do it, rather than that nobody answered.
    pub(crate) fn is_the_hosts(&self) -> bool {
        !matches!(
            &*self.kind,
            "host_gone" | "overloaded" | "not_found" | "empty"
        )
    }

    /// Whether another request would have been answered.
    pub(crate) fn is_the_clients(&self) -> bool {
        self.kind == "invalid_argument"
    }

    /// The error that the plugin replied.
    pub(crate) fn of_answer(answer: &Answer) -> Self {
        let Some(refusal) = Refusal::of_reply(&answer.body) else {
            let message = String::from_utf8_lossy(&answer.body);
            return Self::internal(format!("the plugin refused, and gave no reason: {message}"));
        };
        let kind = match &refusal.kind {
            Word::Known(known) => known.word().into(),
            Word::Other(word) => word.clone().into(),
        };
        Self {
            status: refusal
                .kind
                .known()
                .map_or(StatusCode::INTERNAL_SERVER_ERROR, status_of),
            kind,
            message: refusal.message,
            remedy: refusal.remedy,
            errno: refusal.errno,
            retry_after: refusal.retry_after_ms.map(|ms| ms.div_ceil(1000)),
        }
    }
}

fn status_of(kind: Kind) -> StatusCode {
    match kind {
        Kind::InvalidArgument | Kind::UnknownMessage => StatusCode::BAD_REQUEST,
        Kind::Unavailable => StatusCode::CONFLICT,
        Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
        Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Gone> for Problem {
    fn from(gone: Gone) -> Self {
        Self::gone(gone.to_string())
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        // The cause too: "failed to open x: permission denied".
        let source = std::error::Error::source(&error);
        let message = match source {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        match error.kind() {
            ErrorKind::Usage => Self::invalid(message),
            ErrorKind::Empty => Self::new(StatusCode::CONFLICT, "empty", message)
                .remedy("POST /api/v1/activate, let the program allocate, and dump again"),
            ErrorKind::BuildIdMismatch => {
                Self::new(StatusCode::CONFLICT, "build_id_mismatch", message)
            }
            _ if matches!(error, Error::Program { .. }) => {
                Self::new(StatusCode::NOT_IMPLEMENTED, "missing_program", message)
            }
            _ => Self::internal(message),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut error =
            json!({ "kind": self.kind, "message": self.message, "remedy": self.remedy });
        if let Some(errno) = self.errno {
            error["errno"] = errno.into();
        }
        let body = json!({ "error": error });
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
