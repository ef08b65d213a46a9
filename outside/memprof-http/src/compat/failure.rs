//! Errors in the form of other systems, and the real reason.

use std::io;

use axum::http::{HeaderName, HeaderValue};
use rustix::io::Errno;

use crate::problem::Problem;

/// Header with the reason, for replies whose body has a fixed form.
pub(super) const REASON: HeaderName = HeaderName::from_static("x-memprof-reason");

impl Problem {
    /// Returns the text of strerror(3) for the error that jemalloc's `mallctl` would have returned: for the plugin's
    /// errno or, without one, for the errno that fits the kind of error.
    pub(super) fn strerror(&self) -> String {
        let errno = self.error.errno.map(Errno::from_raw_os_error);
        let errno = errno.unwrap_or(match self.kind() {
            // The controls of profiling do not exist if it is off.
            "unavailable" | "unsupported" => Errno::NOENT,
            "busy" => Errno::AGAIN,
            "invalid_argument" => Errno::INVAL,
            _ => Errno::FAULT,
        });
        // std appends " (os error 28)" to the text of strerror(3).
        let text = io::Error::from(errno).to_string();
        text.split(" (os error").next().unwrap_or(&text).to_owned()
    }

    /// Sets the errno `EINVAL` in an `unavailable` error that has no errno: jemalloc's `mallctl` returns it for a value
    /// that the process cannot use.
    pub(super) fn with_einval_if_unavailable(mut self) -> Self {
        if self.kind() == "unavailable" {
            self.error.errno.get_or_insert(Errno::INVAL.raw_os_error());
        }
        self
    }

    /// Returns the message and remedy, on one line.
    pub(super) fn reason(&self) -> String {
        self.error.to_string()
    }

    /// Returns the header [`REASON`] with the message and remedy; characters other than printable ASCII become `?`.
    pub(super) fn reason_header(&self) -> (HeaderName, HeaderValue) {
        let printable = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
        let text: String = self.reason().chars().map(printable).collect();
        let value = HeaderValue::try_from(text);
        (REASON, value.unwrap_or(HeaderValue::from_static("?")))
    }

    /// Returns whether the error says that this process cannot be profiled: its kind is `unavailable` or `unsupported`.
    pub(super) fn is_profiling_off(&self) -> bool {
        matches!(self.kind(), "unavailable" | "unsupported")
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn strerror_follows_errno_or_kind() {
        let check = |kind, errno, expected: &str| {
            let mut problem = Problem::new(StatusCode::OK, kind, "");
            problem.error.errno = errno;
            assert_eq!(problem.strerror(), expected);
        };
        check("io", Some(28), "No space left on device");
        check("allocator", Some(1), "Operation not permitted");
        check("unavailable", None, "No such file or directory");
        check("busy", None, "Resource temporarily unavailable");
        check("internal", None, "Bad address");
    }
}
