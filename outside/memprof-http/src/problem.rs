//! Errors as HTTP replies.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use memprof_messages::{EmptyReply, ErrorBody, ErrorKind as Kind, ErrorReply, OpenEnum};
use memprof_report::{Error, ErrorKind};

use crate::host_client::{HostUnavailable, PluginReply};

pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// Delay that a client should wait for a host that is gone, in milliseconds.
const HOST_RETRY_MS: u64 = 2000;
/// Delay that a client should wait when the server is overloaded, in milliseconds.
const OVERLOAD_RETRY_MS: u64 = 1000;

/// Error reply, like those of the plugin: `{"error":{kind, message, remedy}}`.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(crate) status: StatusCode,
    /// The kind may be one that only the server has.
    pub(crate) error: Box<ErrorBody>,
}

impl Problem {
    /// Creates an error with an HTTP status and without a remedy. `kind` is the name by which programs distinguish
    /// errors, `message` is for people.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let kind =
            Kind::from_name(kind).map_or_else(|| OpenEnum::Other(kind.to_owned()), OpenEnum::Known);
        let error = ErrorBody {
            kind,
            message: message.into(),
            remedy: String::new(),
            act: None,
            source: None,
            errno: None,
            retry_after_ms: None,
        };
        Self {
            status,
            error: Box::new(error),
        }
    }

    /// Returns the name of the error for programs, `error.kind` in the reply.
    pub(crate) fn kind(&self) -> &str {
        self.error.kind.as_str()
    }

    /// Creates the error 400 Bad Request, kind `invalid_argument`.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    /// Creates the error 404 Not Found, kind `not_found`.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Creates the error 405 Method Not Allowed, kind `invalid_argument`.
    pub(crate) fn method_not_allowed() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let message = "this path does not take the request's method";
        Self::new(status, "invalid_argument", message)
            .remedy("the header Allow names those that it takes; curl -X POST sends a POST")
    }

    /// Creates the error 500 Internal Server Error, kind `internal`: not caused by the request.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// Creates the error 503 Service Unavailable, kind `overloaded`: too many requests at the same time.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
            .remedy("try again in a moment")
            .retry_after_ms(OVERLOAD_RETRY_MS)
    }

    /// Creates the error 503 Service Unavailable, kind `host_gone`: the host does not answer.
    pub(crate) fn host_unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "host_gone", message)
            .remedy("start the process again, or see `memprof ps`; then repeat the request")
            .retry_after_ms(HOST_RETRY_MS)
    }

    /// Creates the error 409 Conflict, kind `invalid_argument`: each parameter is right, but they exclude each other.
    pub(crate) fn contradiction(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_argument", message)
    }

    /// Creates the error 404 Not Found, kind `host_gone`: the path names a process that is no host.
    pub(crate) fn no_host_error(pid: u32) -> Self {
        let message = format!("no host runs as pid {pid}");
        Self::new(StatusCode::NOT_FOUND, "host_gone", message)
            .remedy("GET /api/v1/hosts lists the hosts")
    }

    /// Sets the remedy: an imperative sentence.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.error.remedy = remedy.into();
        self
    }

    /// Sets the time in milliseconds after which the request may succeed.
    fn retry_after_ms(mut self, ms: u64) -> Self {
        self.error.retry_after_ms = Some(ms);
        self
    }

    /// Returns whether the error is the plugin's. False for the kinds that only this server uses: the host does not
    /// answer or does not exist, the server is overloaded, or there is nothing to show. Every other kind is assumed to
    /// be the plugin's.
    pub(crate) fn is_host_error(&self) -> bool {
        !matches!(
            self.kind(),
            "host_gone" | "overloaded" | "not_found" | "empty"
        )
    }

    /// Returns whether the request is invalid (kind `invalid_argument`), so that another one could succeed.
    pub(crate) fn is_client_error(&self) -> bool {
        self.error.kind == Kind::InvalidArgument
    }

    /// Converts the error in the plugin's reply. If the reply has no error in the expected form, returns an internal
    /// error with the reply's text.
    pub(crate) fn from_reply(reply: &PluginReply) -> Self {
        let Some(error) = ErrorBody::from_reply(&reply.body) else {
            let message = String::from_utf8_lossy(&reply.body);
            return Self::internal(format!("the plugin refused, and gave no reason: {message}"));
        };
        let status = error.kind.known().map(http_status_for);
        Self {
            status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            error: Box::new(error),
        }
    }
}

/// Returns the HTTP status for a kind of error of the plugin: 400 if the request is wrong, 409 if this process cannot
/// serve it, 429 if the host is busy, else 500.
fn http_status_for(kind: Kind) -> StatusCode {
    match kind {
        Kind::InvalidArgument | Kind::UnknownMessage => StatusCode::BAD_REQUEST,
        // The request is right, but this process cannot serve it. That is no error of the server, as 500 would say.
        Kind::Unavailable | Kind::Unsupported => StatusCode::CONFLICT,
        Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<HostUnavailable> for Problem {
    fn from(unavailable: HostUnavailable) -> Self {
        Self::host_unavailable(unavailable.to_string())
    }
}

impl From<Error> for Problem {
    /// Converts an error of a report, with its cause. The status follows from the kind of error.
    fn from(error: Error) -> Self {
        // Includes the cause: "failed to open x: permission denied". Some errors have it in their text already.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let text = error.to_string();
        let message = match source {
            Some(source) if !text.ends_with(&source) => format!("{text}: {source}"),
            _ => text,
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
    /// Returns the error as JSON. If the error says when to try again, adds the header `Retry-After`, in seconds
    /// rounded up.
    fn into_response(self) -> Response {
        let retry_after = self.error.retry_after_ms.map(|ms| ms.div_ceil(1000));
        let body = ErrorReply {
            error: *self.error,
            fields: EmptyReply {},
        };
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
