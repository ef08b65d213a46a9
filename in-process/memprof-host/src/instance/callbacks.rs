//! Functions that a plugin calls: the host's log and extensions.

use std::borrow::Cow;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use memprof_plugin_abi::raw::{
    MEMPROF_EXTENSION_JEMALLOC, MEMPROF_EXTENSION_REPLY_FD, memprof_jemalloc_t,
    memprof_log_level_t, memprof_str_t,
};

use super::reply_collector::REPLY_FD;
use crate::program::HostProgram;

/// Context of the host's callbacks, passed as `ctx`.
pub(super) struct HostContext {
    program: HostProgram,
    jemalloc: Option<memprof_jemalloc_t>,
    /// Errors that the plugin logs while `create` runs. If it fails, the last one is the reason; if it succeeds, they
    /// are logged.
    errors: Mutex<Vec<String>>,
    /// Whether `create` has not returned yet.
    is_creating: AtomicBool,
}

// SAFETY: the jemalloc functions are thread-safe (jemalloc(3)), the logger is `Sync`, the errors are behind a mutex.
unsafe impl Sync for HostContext {}

impl HostContext {
    /// Creates the context of a plugin that is about to be created.
    pub(super) fn new(program: HostProgram) -> Self {
        Self {
            program,
            jemalloc: program.jemalloc,
            errors: Mutex::default(),
            is_creating: true.into(),
        }
    }

    /// Returns the errors that the plugin logged while it was created. Later errors are logged at once.
    pub(super) fn take_creation_errors(&self) -> Vec<String> {
        self.is_creating.store(false, Ordering::Release);
        mem::take(&mut self.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes a line to the program's log.
    pub(super) fn log(&self, level: log::Level, target: &str, message: &str) {
        self.program.log.log(
            &log::Record::builder()
                .level(level)
                .target(target)
                .args(format_args!("{message}"))
                .build(),
        );
    }
}

impl fmt::Debug for HostContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

/// Converts a log level of memprof.h; numbers above its levels to `Trace`.
fn to_level(number: memprof_log_level_t) -> log::Level {
    match number {
        0 | 1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        4 => log::Level::Debug,
        _ => log::Level::Trace,
    }
}

/// Converts bytes to text, replacing what is not UTF-8. Faster than [`String::from_utf8_lossy`], which checks byte by
/// byte: that is a fifth of the time of a message.
fn to_text(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Implements `log_enabled` of `memprof_host_t`: returns 1 if lines of this level are logged, otherwise 0.
pub(super) unsafe extern "C" fn log_enabled(ctx: *mut c_void, number: memprof_log_level_t) -> i32 {
    // SAFETY: `ctx` is the context that `Instance::create` leaked.
    let context = unsafe { &*ctx.cast::<HostContext>() };
    let metadata = log::Metadata::builder()
        .level(to_level(number))
        .target("plugin")
        .build();
    i32::from(context.program.log.enabled(&metadata))
}

/// Implements `log` of `memprof_host_t`: logs a line. Errors during the plugin's creation are collected instead.
pub(super) unsafe extern "C" fn log_line(
    ctx: *mut c_void,
    number: memprof_log_level_t,
    target: memprof_str_t,
    message: memprof_str_t,
) {
    // SAFETY: `ctx` is the context that `Instance::create` leaked.
    let context = unsafe { &*ctx.cast::<HostContext>() };
    // SAFETY: memprof.h: the plugin lends the text for the call.
    let target = to_text(unsafe { target.as_bytes() });
    // SAFETY: memprof.h: the plugin lends the text for the call.
    let message = to_text(unsafe { message.as_bytes() });
    let level = to_level(number);
    let is_creating = context.is_creating.load(Ordering::Acquire);
    if is_creating && level == log::Level::Error {
        context
            .errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message.into_owned());
        return;
    }
    context.log(level, &target, &message);
}

/// Implements `get_extension` of `memprof_host_t`: returns the extension called `id`, null if the host has none.
pub(super) unsafe extern "C" fn get_extension(
    ctx: *mut c_void,
    id: memprof_str_t,
) -> *const c_void {
    // SAFETY: `ctx` is the context that `Instance::create` leaked.
    let context = unsafe { &*ctx.cast::<HostContext>() };
    // SAFETY: memprof.h: the plugin lends the text for the call.
    let id = unsafe { id.as_bytes() };
    match &context.jemalloc {
        Some(jemalloc) if id == MEMPROF_EXTENSION_JEMALLOC.as_bytes() => {
            std::ptr::from_ref(jemalloc).cast()
        }
        _ if id == MEMPROF_EXTENSION_REPLY_FD.as_bytes() => std::ptr::from_ref(&REPLY_FD).cast(),
        _ => std::ptr::null(),
    }
}
