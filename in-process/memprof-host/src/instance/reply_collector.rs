//! A reply, as a plugin writes it.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;

use memprof_plugin_abi::Status;
use memprof_plugin_abi::raw::{
    MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_IO, MEMPROF_OK, memprof_reply_fd_t,
    memprof_str_t,
};

use super::entry::text;
use crate::body::Body;

/// What the plugin wrote so far.
#[derive(Default)]
pub(super) struct ReplyCollector {
    pub(super) content_type: Option<String>,
    pub(super) body: Body,
}

pub(super) unsafe extern "C" fn begin_body(
    ctx: *mut c_void,
    content_type: memprof_str_t,
) -> Status {
    // SAFETY: `Instance::message` passes its own collector, for one call on one thread.
    let collected = unsafe { &mut *ctx.cast::<ReplyCollector>() };
    if collected.content_type.is_some() || !collected.body.is_empty() {
        return MEMPROF_INTERNAL;
    }
    // SAFETY: the plugin lends the text for the call.
    collected.content_type = Some(unsafe { text(content_type) });
    MEMPROF_OK
}

pub(super) unsafe extern "C" fn write_body(ctx: *mut c_void, chunk: memprof_str_t) -> Status {
    // SAFETY: as in `begin_body`.
    let collected = unsafe { &mut *ctx.cast::<ReplyCollector>() };
    // SAFETY: the plugin lends the bytes for the call.
    match collected.body.write(unsafe { chunk.as_bytes() }) {
        Ok(()) => MEMPROF_OK,
        Err(error) => {
            log::error!("a reply does not fit: {error}");
            MEMPROF_IO
        }
    }
}

/// Takes a reply that is a file.
pub(super) static REPLY_FD: memprof_reply_fd_t = memprof_reply_fd_t {
    struct_size: size_of::<memprof_reply_fd_t>(),
    file: Some(take_file),
};

unsafe extern "C" fn take_file(
    ctx: *mut c_void,
    fd: c_int,
    size: u64,
    content_type: memprof_str_t,
) -> Status {
    // SAFETY: as in `begin_body`.
    let collected = unsafe { &mut *ctx.cast::<ReplyCollector>() };
    if collected.content_type.is_some() || !collected.body.is_empty() {
        return MEMPROF_INTERNAL;
    }
    if fd < 0 {
        return MEMPROF_INVALID_ARGUMENT;
    }
    // SAFETY: the plugin lends the descriptor for the call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    match Body::from_file(file, size) {
        Ok(body) => {
            // SAFETY: the plugin lends the text for the call.
            collected.content_type = Some(unsafe { text(content_type) });
            collected.body = body;
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
