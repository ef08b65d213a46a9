//! Functions that a plugin calls: the host's log and extensions.

use std::borrow::Cow;
use std::ffi::c_void;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use memprof_plugin_abi::escape_controls;
use memprof_plugin_abi::raw::{
    MEMPROF_EXTENSION_JEMALLOC, MEMPROF_EXTENSION_REPLY_FD, memprof_jemalloc_t,
    memprof_log_level_t, memprof_str_t,
};

use super::reply_collector::REPLY_FD;
use crate::log_line::one_line;
use crate::program::HostProgram;

/// Context of the host's callbacks, passed as `ctx`.
pub(super) struct HostContext {
    program: HostProgram,
    /// Id of the plugin, the target of its lines in the program's log.
    plugin: String,
    jemalloc: Option<memprof_jemalloc_t>,
    /// Last line that the plugin logged during `create`, if it is an error: the reason if `create` fails.
    last_error: Mutex<Option<ErrorLine>>,
    /// Whether `create` has not returned yet.
    is_creating: AtomicBool,
}

// SAFETY: the jemalloc functions are thread-safe (jemalloc(3)), the logger is `Sync`, the error is behind a mutex.
unsafe impl Sync for HostContext {}

impl HostContext {
    /// Creates the context of a plugin that is about to be created.
    pub(super) fn new(program: HostProgram, plugin: String) -> Self {
        Self {
            program,
            plugin,
            jemalloc: program.jemalloc,
            last_error: Mutex::default(),
            is_creating: true.into(),
        }
    }

    /// Marks the creation of the plugin as finished: later errors are written at once. Returns the error line that was
    /// held back: the last line that the plugin logged, not yet written. `None` if the last line was no error.
    pub(super) fn end_creation(&self) -> Option<ErrorLine> {
        self.is_creating.store(false, Ordering::Release);
        self.replace_held_line(None)
    }

    /// Holds an error line back, in place of the one that was held back before, which it returns. `line` is `None` to
    /// hold none back.
    fn replace_held_line(&self, line: Option<ErrorLine>) -> Option<ErrorLine> {
        let mut held = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *held, line)
    }

    /// Writes a line to the program's log, with the plugin's id as its target. `part`, the part of the plugin that
    /// logs, becomes the record's module.
    fn write_line(&self, level: log::Level, part: &str, text: &str) {
        self.program.log.log(
            &log::Record::builder()
                .level(level)
                .target(&self.plugin)
                .module_path(Some(part))
                .args(format_args!("{text}"))
                .build(),
        );
    }

    /// Writes an error that was held back to the program's log.
    pub(super) fn write_error(&self, line: &ErrorLine) {
        self.write_line(log::Level::Error, &line.part, &line.text);
    }
}

/// An error that a plugin logs while it is created.
#[derive(Debug)]
pub(super) struct ErrorLine {
    /// Part of the plugin that logs it.
    part: String,
    /// Text without control characters.
    text: String,
    /// Text in one line, without the excerpts of a TOML parser: the reason if `create` fails.
    pub(super) reason: String,
}

impl fmt::Debug for HostContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

/// Converts a log level of memprof.h: 0, which is below its levels, to `Error`, and numbers above them to `Trace`.
fn log_level_from_number(number: memprof_log_level_t) -> log::Level {
    match number {
        0 | 1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        4 => log::Level::Debug,
        _ => log::Level::Trace,
    }
}

/// Converts bytes to text, replacing what is not UTF-8. Tries [`str::from_utf8`] first: [`String::from_utf8_lossy`]
/// checks byte by byte, which takes a fifth of the time of a message.
fn to_text(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Implements `log_enabled` of `memprof_host_t`: returns 1 if lines of this level are logged, otherwise 0.
pub(super) unsafe extern "C" fn log_enabled(ctx: *mut c_void, number: memprof_log_level_t) -> i32 {
    // SAFETY: `ctx` is the context that `Instance::create` leaked.
    let context = unsafe { &*ctx.cast::<HostContext>() };
    let metadata = log::Metadata::builder()
        .level(log_level_from_number(number))
        .target(&context.plugin)
        .build();
    i32::from(context.program.log.enabled(&metadata))
}

/// Implements `log` of `memprof_host_t`: writes a line to the program's log. An error during the plugin's creation is
/// held back until the next line or the end of `create`: if `create` then fails, the error becomes the reason, and is
/// not logged twice.
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
    let text = escape_controls(&message);
    let level = log_level_from_number(number);
    let is_creating = context.is_creating.load(Ordering::Acquire);
    let is_held = is_creating && level == log::Level::Error;
    if is_creating {
        let line = is_held.then(|| ErrorLine {
            part: target.to_string(),
            text: text.to_string(),
            reason: one_line(&message),
        });
        // The lines stay in their order.
        if let Some(before) = context.replace_held_line(line) {
            context.write_error(&before);
        }
    }
    if !is_held {
        context.write_line(level, &target, &text);
    }
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

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// A logger of info that keeps what it is called with.
    struct TestLog(Mutex<Vec<String>>);

    impl log::Log for TestLog {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.target() == "words" && metadata.level() <= log::Level::Info
        }

        fn log(&self, record: &log::Record<'_>) {
            let (level, target, part) = (record.level(), record.target(), record.module_path());
            let line = format!("{level} {target} {}: {}", part.unwrap(), record.args());
            self.0.lock().unwrap().push(line);
        }

        fn flush(&self) {}
    }

    #[test]
    fn lines_have_the_plugins_id_and_their_order() {
        static LOG: TestLog = TestLog(Mutex::new(Vec::new()));
        let program = HostProgram {
            log: &LOG,
            ..HostProgram::new("test", "")
        };
        let context = HostContext::new(program, "words".to_owned());
        let ctx = ptr::from_ref(&context).cast_mut().cast();
        let log = |number, text| {
            let [part, text] = ["words::part", text].map(memprof_str_t::new);
            // SAFETY: the context and the texts outlive the call.
            unsafe { log_line(ctx, number, part, text) };
        };
        // SAFETY: the context outlives the call.
        let enabled = [3, 4].map(|number| unsafe { log_enabled(ctx, number) });
        assert_eq!(enabled, [1, 0]);
        log(1, "first\nERROR host: forged");
        log(3, "second");
        log(1, "third\n  |\n3 | x\nat line 3");
        assert_eq!(context.end_creation().unwrap().reason, "third; at line 3");
        log(1, "fourth");
        let lines = [
            "ERROR words words::part: first\\nERROR host: forged",
            "INFO words words::part: second",
            "ERROR words words::part: fourth",
        ];
        assert_eq!(*LOG.0.lock().unwrap(), lines);
    }
}
