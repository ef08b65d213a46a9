//! Collects a reply while the plugin writes it.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;

use memprof_plugin_abi::raw::{
    MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_IO, MEMPROF_OK, memprof_reply_fd_t,
    memprof_str_t,
};
use memprof_plugin_abi::{Failure, Status, TEXT};

use super::entry::copy_text;
use crate::body::Body;
use crate::reply::Reply;

/// Collected part of a reply.
#[derive(Default)]
pub(super) struct ReplyCollector {
    pub(super) content_type: Option<String>,
    pub(super) body: Body,
    /// Reason for which a part of the body was refused. No later part is accepted, so that the body has no hole.
    error: Option<io::Error>,
}

impl ReplyCollector {
    /// Returns whether the reply has a content type or a part of its body, be it refused.
    fn has_begun(&self) -> bool {
        self.content_type.is_some() || !self.body.is_empty() || self.error.is_some()
    }

    /// Returns the reply of plugin `id` to message `name`, whose handler returned `status`. It is an error if a part of
    /// the body was refused, or if the handler failed without writing a text. A positive status, which memprof.h does
    /// not have, becomes `MEMPROF_INTERNAL`.
    pub(super) fn into_reply(self, status: Status, id: &str, name: &str) -> Reply {
        // memprof.h has no positive status: programs take 0 for success and a negative number for an error.
        let status = if status > MEMPROF_OK {
            log::error!(
                "plugin {id} answers {name:?} with the status {status}: none of memprof.h is positive"
            );
            MEMPROF_INTERNAL
        } else {
            status
        };
        let failure = match (self.error, status) {
            (Some(error), MEMPROF_OK) => {
                let message = format!("the reply to {name:?} does not fit: {error}");
                Some(Failure::new(MEMPROF_IO, message).remedy(
                    "the plugin's author can pass a larger reply as a file, by memprof.reply_fd/1",
                ))
            }
            (_, MEMPROF_OK) => None,
            _ if self.body.is_empty() => {
                let message =
                    format!("plugin {id} refused {name:?} with status {status} and no text");
                Some(Failure::new(status, message))
            }
            _ => None,
        };
        match failure {
            Some(failure) => Reply {
                // A number that this host does not know stays as it is.
                status_code: if status == MEMPROF_OK {
                    MEMPROF_IO
                } else {
                    status
                },
                ..Reply::failed(&failure)
            },
            None => Reply {
                status_code: status,
                content_type: self.content_type.map_or(TEXT.into(), String::into),
                body: self.body,
            },
        }
    }
}

/// Implements `begin` of `memprof_reply_t`: sets the content type. Fails if the reply has begun already, or if the
/// content type has characters that a header of HTTP cannot contain.
pub(super) unsafe extern "C" fn begin_body(
    ctx: *mut c_void,
    content_type: memprof_str_t,
) -> Status {
    // SAFETY: `Instance::message` passes its collector as `ctx`, for one call on one thread.
    let collector = unsafe { &mut *ctx.cast::<ReplyCollector>() };
    if collector.has_begun() {
        return MEMPROF_INTERNAL;
    }
    // SAFETY: memprof.h: the plugin lends the text for the call.
    let content_type = unsafe { copy_text(content_type) };
    if !is_header_safe(&content_type) {
        return MEMPROF_INVALID_ARGUMENT;
    }
    collector.content_type = Some(content_type);
    MEMPROF_OK
}

/// Returns whether a content type has only printable ASCII characters, so that a host can pass it on as it is: a
/// program may write it into a header of HTTP, which a newline would end.
fn is_header_safe(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Implements `write` of `memprof_reply_t`: appends to the body. Fails if the body would be too large, and at each
/// later call, so that the body has no gap.
pub(super) unsafe extern "C" fn write_body(ctx: *mut c_void, chunk: memprof_str_t) -> Status {
    // SAFETY: `Instance::message` passes its collector as `ctx`, for one call on one thread.
    let collector = unsafe { &mut *ctx.cast::<ReplyCollector>() };
    if collector.error.is_some() {
        return MEMPROF_IO;
    }
    // SAFETY: memprof.h: the plugin lends the bytes for the call.
    match collector.body.write(unsafe { chunk.as_bytes() }) {
        Ok(()) => MEMPROF_OK,
        Err(error) => {
            log::error!("a reply does not fit: {error}");
            collector.error = Some(error);
            MEMPROF_IO
        }
    }
}

/// The host's extension that accepts a file as a reply's body.
pub(super) static REPLY_FD: memprof_reply_fd_t = memprof_reply_fd_t {
    struct_size: size_of::<memprof_reply_fd_t>(),
    file: Some(set_body_file),
};

/// Implements `file` of `memprof_reply_fd_t`: makes the first `size` bytes of a file the body, and duplicates its
/// descriptor. Fails if the reply has begun already, or if the descriptor or the content type is invalid. Fails also if
/// the file is not a regular one, is shorter than `size`, or can still be written to.
unsafe extern "C" fn set_body_file(
    ctx: *mut c_void,
    fd: c_int,
    size: u64,
    content_type: memprof_str_t,
) -> Status {
    // SAFETY: `Instance::message` passes its collector as `ctx`, for one call on one thread.
    let collector = unsafe { &mut *ctx.cast::<ReplyCollector>() };
    if collector.has_begun() {
        return MEMPROF_INTERNAL;
    }
    if fd < 0 {
        return MEMPROF_INVALID_ARGUMENT;
    }
    // SAFETY: memprof.h: the plugin lends the text for the call.
    let content_type = unsafe { copy_text(content_type) };
    if !is_header_safe(&content_type) {
        return MEMPROF_INVALID_ARGUMENT;
    }
    // SAFETY: memprof.h: the plugin lends the descriptor for the call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    match Body::from_file(file, size) {
        Ok(body) => {
            collector.content_type = Some(content_type);
            collector.body = body;
            MEMPROF_OK
        }
        Err(error) => {
            log::debug!("a reply as a file is refused: {error}");
            match error.kind() {
                io::ErrorKind::InvalidInput => MEMPROF_INVALID_ARGUMENT,
                _ => MEMPROF_IO,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn positive_status_is_an_internal_error() {
        let check = |returned: Status, expected: Status| {
            let reply = ReplyCollector::default().into_reply(returned, "words", "list");
            assert_eq!(reply.status_code, expected, "{returned}");
        };
        check(MEMPROF_OK, MEMPROF_OK);
        check(MEMPROF_IO, MEMPROF_IO);
        check(-77, -77);
        check(1000, MEMPROF_INTERNAL);
        check(Status::MAX, MEMPROF_INTERNAL);
    }

    #[test]
    fn nothing_is_accepted_after_refused_write() {
        let chunk = vec![0; memprof_plugin_abi::COPY_LIMIT as usize + 1];
        let mut collector = ReplyCollector::default();
        let ctx: *mut c_void = (&raw mut collector).cast();
        // SAFETY: the collector and the bytes outlive the call.
        let written = unsafe { write_body(ctx, memprof_str_t::from_bytes(&chunk)) };
        assert_eq!(written, MEMPROF_IO);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let content_type = memprof_str_t::new(TEXT);
        // SAFETY: the collector, the descriptor and the text outlive the call.
        let passed = unsafe { set_body_file(ctx, file.as_raw_fd(), 1, content_type) };
        assert_eq!(passed, MEMPROF_INTERNAL);
        // SAFETY: the collector and the text outlive the call.
        let begun = unsafe { begin_body(ctx, content_type) };
        assert_eq!(begun, MEMPROF_INTERNAL);
        let reply = collector.into_reply(MEMPROF_OK, "words", "list");
        assert_eq!(reply.status_code, MEMPROF_IO);
    }

    #[test]
    fn content_type_is_printable() {
        let check = |text: &str, expected: Status| {
            let mut collector = ReplyCollector::default();
            let ctx = (&raw mut collector).cast();
            // SAFETY: the collector and the text outlive the call.
            let status = unsafe { begin_body(ctx, memprof_str_t::new(text)) };
            assert_eq!(status, expected, "{text:?}");
            let kept = (expected == MEMPROF_OK).then(|| text.to_owned());
            assert_eq!(collector.content_type, kept, "{text:?}");
        };
        check("text/csv; charset=utf-8", MEMPROF_OK);
        check("text/html\r\nX-Other: 1", MEMPROF_INVALID_ARGUMENT);
        check("text/\u{e4}", MEMPROF_INVALID_ARGUMENT);
        check("text/\0", MEMPROF_INVALID_ARGUMENT);
        check("", MEMPROF_OK);
    }
}
