//! What a plugin calls: the host's log and extensions.

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

/// What the host's callbacks find behind `ctx`.
pub(super) struct HostContext {
    program: HostProgram,
    jemalloc: Option<memprof_jemalloc_t>,
    /// While `create` runs: the errors that the plugin logged. The last one is the reason if it
    /// fails; if it succeeds, they are lines like others.
    errors: Mutex<Vec<String>>,
    in_creation: AtomicBool,
}

// SAFETY: the jemalloc functions are thread-safe (jemalloc(3)), the logger is `Sync`, and the
// rest is guarded.
unsafe impl Sync for HostContext {}

impl HostContext {
    /// Of a plugin that is about to be created.
    pub(super) fn of(program: HostProgram) -> Self {
        Self {
            program,
            jemalloc: program.jemalloc,
            errors: Mutex::default(),
            in_creation: true.into(),
        }
    }

    /// Returns the errors that the plugin logged while it was created.
    pub(super) fn take_creation_errors(&self) -> Vec<String> {
        self.in_creation.store(false, Ordering::Release);
        mem::take(&mut self.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }

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

fn level(number: memprof_log_level_t) -> log::Level {
    match number {
        0 | 1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        4 => log::Level::Debug,
        _ => log::Level::Trace,
    }
}

/// As [`String::from_utf8_lossy`], which looks at each byte: a fifth of a message's way.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

pub(super) unsafe extern "C" fn log_enabled(ctx: *mut c_void, number: memprof_log_level_t) -> i32 {
    // SAFETY: `Instance::create` leaked it.
    let context = unsafe { &*ctx.cast::<HostContext>() };
    let metadata = log::Metadata::builder()
        .level(level(number))
        .target("plugin")
        .build();
    i32::from(context.program.log.enabled(&metadata))
}

pub(super) unsafe extern "C" fn log_line(
    ctx: *mut c_void,
    number: memprof_log_level_t,
    target: memprof_str_t,
    message: memprof_str_t,
) {
    // SAFETY: `Instance::create` leaked it.
    let context = unsafe { &*ctx.cast::<HostContext>() };
    // SAFETY: the plugin lends the text for the call.
    let target = text(unsafe { target.as_bytes() });
    // SAFETY: as above.
    let message = text(unsafe { message.as_bytes() });
    let level = level(number);
    let creating = context.in_creation.load(Ordering::Acquire);
    if creating && level == log::Level::Error {
        context
            .errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message.into_owned());
        return;
    }
    context.log(level, &target, &message);
}

pub(super) unsafe extern "C" fn get_extension(
    ctx: *mut c_void,
    id: memprof_str_t,
) -> *const c_void {
    // SAFETY: `Instance::create` leaked it.
    let context = unsafe { &*ctx.cast::<HostContext>() };
    // SAFETY: the plugin lends the text for the call.
    let id = unsafe { id.as_bytes() };
    match &context.jemalloc {
        Some(jemalloc) if id == MEMPROF_EXTENSION_JEMALLOC.as_bytes() => {
            std::ptr::from_ref(jemalloc).cast()
        }
        _ if id == MEMPROF_EXTENSION_REPLY_FD.as_bytes() => std::ptr::from_ref(&REPLY_FD).cast(),
        _ => std::ptr::null(),
    }
}
