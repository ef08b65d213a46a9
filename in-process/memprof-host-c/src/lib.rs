//! The host's side of memprof for programs in C and C++. `include/memprof_host.h` is generated
//! from this file; programs in Rust use `memprof-host` itself.
#![expect(unsafe_code, reason = "the ABI boundary")]
#![expect(non_camel_case_types, reason = "the C header carries these names")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use log::{LevelFilter, Log, Metadata, Record};
use memprof_host::{Config, Host, HostProgram};
use memprof_labels::Mark;
use memprof_plugin_abi::raw::{
    MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_LOG_DEBUG, MEMPROF_LOG_ERROR,
    MEMPROF_LOG_INFO, MEMPROF_LOG_TRACE, MEMPROF_LOG_WARN, MEMPROF_OK, MEMPROF_PANIC,
    MEMPROF_UNKNOWN_MESSAGE, memprof_jemalloc_t, memprof_log_level_t, memprof_reply_t,
    memprof_status_t, memprof_str_t,
};

/// Writes one line to the program's log. Called on any thread, several at once. May be NULL.
pub type memprof_host_log_t = Option<
    unsafe extern "C" fn(
        ctx: *mut c_void,
        level: memprof_log_level_t,
        target: memprof_str_t,
        message: memprof_str_t,
    ),
>;

/// A running host.
pub struct memprof_running_host_t(Host);

impl std::fmt::Debug for memprof_running_host_t {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What `memprof_host_start` needs. Everything is borrowed for the call, except `log_ctx`.
#[repr(C)]
#[derive(Debug)]
pub struct memprof_host_options_t {
    /// `sizeof(memprof_host_options_t)`.
    pub struct_size: usize,
    /// The program's name, NUL-terminated.
    pub name: *const c_char,
    /// The program's version, NUL-terminated; may be NULL.
    pub version: *const c_char,
    /// The path of the config file (TOML), NUL-terminated.
    pub config_path: *const c_char,
    /// Where log lines go; may be NULL.
    pub log: memprof_host_log_t,
    /// Passed back to `log`; used until the process ends.
    pub log_ctx: *mut c_void,
    /// The program's own jemalloc; NULL to let plugins search.
    pub jemalloc: *const memprof_jemalloc_t,
}

/// [control-thread] Loads the plugins and opens the control socket. A plugin that cannot be
/// loaded is logged and does not fail this; a config that cannot be read does.
///
/// # Safety
/// `options` points to a whole struct, and `host` to where the result goes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memprof_host_start(
    options: *const memprof_host_options_t,
    host: *mut *mut memprof_running_host_t,
) -> memprof_status_t {
    // SAFETY: memprof_host.h: null or a whole struct.
    let options = match unsafe { options.as_ref() } {
        Some(options) if options.struct_size >= size_of::<memprof_host_options_t>() => options,
        _ => return MEMPROF_INVALID_ARGUMENT,
    };
    if host.is_null() || options.name.is_null() || options.config_path.is_null() {
        return MEMPROF_INVALID_ARGUMENT;
    }
    catch_panic(|| match start(options) {
        Ok(started) => {
            let started = Box::into_raw(Box::new(memprof_running_host_t(started)));
            // SAFETY: not null, and the caller's to write to.
            unsafe { *host = started };
            MEMPROF_OK
        }
        Err(()) => MEMPROF_INVALID_ARGUMENT,
    })
}

/// [thread-safe] Sends a message to a plugin; `reply` receives the body.
///
/// # Safety
/// `host` is running; all texts are borrowed for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memprof_host_message(
    host: *const memprof_running_host_t,
    plugin: memprof_str_t,
    message: memprof_str_t,
    args: memprof_str_t,
    reply: *const memprof_reply_t,
) -> memprof_status_t {
    // SAFETY: memprof_host.h: null or a host that was not stopped.
    let Some(memprof_running_host_t(host)) = (unsafe { host.as_ref() }) else {
        return MEMPROF_INVALID_ARGUMENT;
    };
    // SAFETY: memprof_host.h: the texts are borrowed for the call.
    let texts = [plugin, message, args].map(|text| unsafe { text.as_str() });
    let [Ok(plugin), Ok(message), Ok(args)] = texts else {
        return MEMPROF_INVALID_ARGUMENT;
    };
    catch_panic(|| {
        let answer = match host.message(plugin, message, args) {
            Ok(answer) => answer,
            Err(unknown) => {
                // SAFETY: memprof_host.h: `reply` is null or lives as long as the call.
                unsafe {
                    forward_reply(
                        reply,
                        "text/plain; charset=utf-8",
                        unknown.to_string().as_bytes(),
                    )
                };
                return MEMPROF_UNKNOWN_MESSAGE;
            }
        };
        let Ok(bytes) = answer.body.into_bytes() else {
            return MEMPROF_INTERNAL;
        };
        // SAFETY: as above.
        unsafe { forward_reply(reply, &answer.content_type, &bytes) };
        answer.status_code
    })
}

/// [control-thread] Closes the control socket and ends the plugins. No other call may run.
///
/// # Safety
/// `host` is running, or NULL; it must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memprof_host_stop(host: *mut memprof_running_host_t) {
    if host.is_null() {
        return;
    }
    // SAFETY: `memprof_host_start` made it from a box, and the caller gives it back.
    let host = unsafe { Box::from_raw(host) };
    catch_panic(|| {
        drop(host);
        MEMPROF_OK
    });
}

/// [thread-safe] Labels what the calling thread allocates from here on: `memprof activate labels=KEY`
/// lets profiles tell whose memory it is, be this program a host or not. Returns what
/// `memprof_label_pop` takes to end it. Costs some nanoseconds, allocates nothing but for a new
/// key. Both texts are NUL-terminated and copied; of the same key the last one counts. What is
/// more than 64 keys, 255 bytes of a value or 612 bytes of a thread's labels is left out.
///
/// # Safety
/// Both are NUL-terminated; with NULL there is no label.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memprof_label_push(key: *const c_char, value: *const c_char) -> u16 {
    // No label ends there.
    let mut before = Mark(u16::MAX);
    if key.is_null() || value.is_null() {
        return before.0;
    }
    // SAFETY: promised by the caller.
    let texts = [key, value].map(|text| unsafe { CStr::from_ptr(text) });
    catch_panic(|| {
        let [key, value] = texts.map(CStr::to_string_lossy);
        before = memprof_labels::push(&key, &value);
        MEMPROF_OK
    });
    before.0
}

/// [thread-safe] Ends the labels that the calling thread was given since the
/// `memprof_label_push` that returned `before`: in the reverse order. A coroutine pops its labels before
/// it leaves the thread, and pushes them where it goes on.
#[unsafe(no_mangle)]
pub extern "C" fn memprof_label_pop(before: u16) {
    memprof_labels::pop(Mark(before));
}

/// Reads the config and starts; what goes wrong is logged.
fn start(options: &memprof_host_options_t) -> Result<Host, ()> {
    // The lines of this library too, beside those of plugins.
    let logger: &'static CallbackLogger = Box::leak(Box::new(CallbackLogger {
        log: options.log,
        ctx: options.log_ctx,
    }));
    if log::set_logger(logger).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
    // SAFETY: `memprof_host_start` checked it for null; NUL-terminated by memprof_host.h.
    let config_path = unsafe { CStr::from_ptr(options.config_path) };
    let config = Config::read(Path::new(OsStr::from_bytes(config_path.to_bytes())));
    let config = config.map_err(|error| log::error!("{error}"))?;
    if let Ok(level) = config.log.level() {
        log::set_max_level(level);
    }
    let program = HostProgram {
        // SAFETY: `memprof_host_start` checked it for null.
        name: unsafe { leaked_text(options.name) },
        // SAFETY: memprof_host.h: null or NUL-terminated.
        version: unsafe { leaked_text(options.version) },
        log: logger,
        // SAFETY: memprof_host.h: null or a whole struct.
        jemalloc: unsafe { options.jemalloc.as_ref() }.copied(),
    };
    Host::start(&config, program).map_err(|error| log::error!("{error}"))
}

/// A copy that lives as long as the plugins: as long as the process.
///
/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn leaked_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: promised by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    Box::leak(text.to_string_lossy().into_owned().into_boxed_str())
}

/// # Safety
/// `reply` is null, or a host's reply as memprof.h describes it.
unsafe fn forward_reply(reply: *const memprof_reply_t, content_type: &str, body: &[u8]) {
    // SAFETY: promised by the caller.
    let Some(reply) = (unsafe { reply.as_ref() }) else {
        return;
    };
    if let Some(begin) = reply.begin {
        // SAFETY: the program's callback, with text that outlives the call.
        unsafe { begin(reply.ctx, memprof_str_t::new(content_type)) };
    }
    if let Some(write) = reply.write {
        // SAFETY: as above.
        unsafe { write(reply.ctx, memprof_str_t::from_bytes(body)) };
    }
}

/// No panic leaves an exported function.
fn catch_panic(work: impl FnOnce() -> memprof_status_t) -> memprof_status_t {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        // Dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
        MEMPROF_PANIC
    })
}

/// A logger that calls the program.
struct CallbackLogger {
    log: memprof_host_log_t,
    ctx: *mut c_void,
}

// SAFETY: memprof_host.h: the callback may be called on any thread.
unsafe impl Send for CallbackLogger {}
// SAFETY: as above.
unsafe impl Sync for CallbackLogger {}

impl Log for CallbackLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.log.is_some() && metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        let Some(log) = self.log.filter(|_| self.enabled(record.metadata())) else {
            return;
        };
        let level = match record.level() {
            log::Level::Error => MEMPROF_LOG_ERROR,
            log::Level::Warn => MEMPROF_LOG_WARN,
            log::Level::Info => MEMPROF_LOG_INFO,
            log::Level::Debug => MEMPROF_LOG_DEBUG,
            log::Level::Trace => MEMPROF_LOG_TRACE,
        };
        let message = record.args().to_string();
        let (target, message) = (
            memprof_str_t::new(record.target()),
            memprof_str_t::new(&message),
        );
        // SAFETY: memprof_host.h: thread-safe, and the texts outlive the call.
        unsafe { log(self.ctx, level, target, message) }
    }

    fn flush(&self) {}
}
