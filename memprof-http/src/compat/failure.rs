//! What other systems say when jemalloc refuses, and why it really does.

use axum::http::{HeaderName, HeaderValue};

use crate::problem::Problem;

/// Carries the reason where a body must say something else.
pub(super) const REASON: HeaderName = HeaderName::from_static("x-memprof-reason");

impl Problem {
    /// The words of strerror(3) that `mallctl` would have led to.
    pub(super) fn strerror(&self) -> &str {
        // The plugin names the errno: "failed to open x: Permission denied (EACCES)".
        if let Some((text, errno)) = self.message.rsplit_once(" (E")
            && errno.ends_with(')')
            && let Some((_, text)) = text.rsplit_once(": ")
        {
            return text;
        }
        match &*self.kind {
            // The controls of profiling do not exist where it is off.
            "unavailable" | "unsupported" => "No such file or directory",
            "busy" => "Resource temporarily unavailable",
            "invalid_argument" => "Invalid argument",
            _ => "Bad address",
        }
    }

    /// What happened and what would help, on one line.
    pub(super) fn reason(&self) -> String {
        match self.remedy.as_str() {
            "" => self.message.clone(),
            remedy => format!("{}; {remedy}", self.message),
        }
    }

    /// The same for a header.
    pub(super) fn reason_header(&self) -> (HeaderName, HeaderValue) {
        let printable = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
        let text: String = self.reason().chars().map(printable).collect();
        let value = HeaderValue::try_from(text);
        (REASON, value.unwrap_or(HeaderValue::from_static("?")))
    }

    /// Whether profiling cannot be on in that process.
    pub(super) fn is_profiling_off(&self) -> bool {
        matches!(&*self.kind, "unavailable" | "unsupported")
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn words_of_strerror() {
        let check = |kind, message: &str, expected: &str| {
            let problem = Problem::new(StatusCode::OK, kind, message);
            assert_eq!(problem.strerror(), expected);
        };
        check(
            "io",
            "failed to open /x: No space left on device (ENOSPC)",
            "No space left on device",
        );
        check(
            "allocator",
            "jemalloc refused prof.gdump: Operation not permitted (EPERM)",
            "Operation not permitted",
        );
        check(
            "unavailable",
            "jemalloc 5.3.0 was started with opt.prof=false",
            "No such file or directory",
        );
        check(
            "busy",
            "a dump is running",
            "Resource temporarily unavailable",
        );
        check("internal", "odd (Eh", "Bad address");
    }
}
