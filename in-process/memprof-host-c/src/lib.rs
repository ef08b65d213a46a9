//! The host's side of memprof for programs in C and C++. `include/memprof_host.h` is generated from this file; programs
//! in Rust use `memprof-host`.
#![expect(unsafe_code, reason = "the ABI boundary")]
#![expect(non_camel_case_types, reason = "the C header carries these names")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use log::{LevelFilter, Log, Metadata, Record};
use memprof_host::{Config, Host, HostProgram, one_line};
use memprof_labels::Mark;
use memprof_plugin_abi::TEXT;
use memprof_plugin_abi::raw::{
    MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_LOG_DEBUG, MEMPROF_LOG_ERROR,
    MEMPROF_LOG_INFO, MEMPROF_LOG_TRACE, MEMPROF_LOG_WARN, MEMPROF_OK, MEMPROF_PANIC,
    MEMPROF_UNKNOWN_PLUGIN, memprof_jemalloc_t, memprof_log_level_t, memprof_reply_t,
    memprof_status_t, memprof_str_t,
};

/// Writes one line to the program's log. May be called on any thread, and on several at once. May be NULL.
pub type memprof_host_log_t = Option<
    unsafe extern "C" fn(
        ctx: *mut c_void,
        level: memprof_log_level_t,
        target: memprof_str_t,
        message: memprof_str_t,
    ),
>;

/// A running host: its plugins and its control socket.
pub struct memprof_running_host_t(Host);

impl std::fmt::Debug for memprof_running_host_t {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Options of `memprof_host_start`. All pointers are borrowed for the call, except `log_ctx`.
#[repr(C)]
#[derive(Debug)]
pub struct memprof_host_options_t {
    /// `sizeof(memprof_host_options_t)`.
    pub struct_size: usize,
    /// Name of the program, NUL-terminated.
    pub name: *const c_char,
    /// Version of the program, NUL-terminated; may be NULL.
    pub version: *const c_char,
    /// Path of the config file (TOML), NUL-terminated.
    pub config_path: *const c_char,
    /// Receives the log lines; may be NULL.
    pub log: memprof_host_log_t,
    /// Passed to `log`; used until the process ends.
    pub log_ctx: *mut c_void,
    /// Functions of the program's jemalloc; NULL to let plugins search for one.
    pub jemalloc: *const memprof_jemalloc_t,
}

/// [control-thread] Loads the plugins and opens the control socket. A plugin that cannot be loaded is logged, and is no
/// error. Returns `MEMPROF_INVALID_ARGUMENT` if the config cannot be read or is invalid, for a reason that is logged; if
/// an argument, the name or the path is null; or if the struct is too small.
///
/// # Safety
/// `options` points to a whole struct, and `host` to a pointer that receives the result.
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
    catch_panic(|| match start_host(options) {
        Ok(running) => {
            let running = Box::into_raw(Box::new(memprof_running_host_t(running)));
            // SAFETY: checked for null above; memprof_host.h: it points to a pointer that the caller lets this write.
            unsafe { *host = running };
            MEMPROF_OK
        }
        Err(()) => MEMPROF_INVALID_ARGUMENT,
    })
}

/// [thread-safe] Sends a message to a plugin; `reply` receives the body of its reply, and never reaches the plugin: it may
/// be NULL, and so may each of its callbacks. Returns the plugin's status, or `MEMPROF_UNKNOWN_PLUGIN`, with a text that
/// lists the host's plugins, if none has that name.
/// `MEMPROF_INVALID_ARGUMENT` if `host` is null or a text is not UTF-8; `MEMPROF_INTERNAL` if the reply's file cannot
/// be read.
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
        let text = "plugin, message and arguments must be UTF-8";
        // SAFETY: memprof_host.h: `reply` is null or lives as long as the call.
        unsafe { forward_reply(reply, TEXT, text.as_bytes()) };
        return MEMPROF_INVALID_ARGUMENT;
    };
    catch_panic(|| {
        let plugin_reply = match host.message(plugin, message, args) {
            Ok(plugin_reply) => plugin_reply,
            Err(unknown) => {
                // SAFETY: memprof_host.h: `reply` is null or lives as long as the call.
                unsafe { forward_reply(reply, TEXT, unknown.to_string().as_bytes()) };
                return MEMPROF_UNKNOWN_PLUGIN;
            }
        };
        let Ok(bytes) = plugin_reply.body.into_bytes() else {
            return MEMPROF_INTERNAL;
        };
        // SAFETY: memprof_host.h: `reply` is null or lives as long as the call.
        unsafe { forward_reply(reply, &plugin_reply.content_type, &bytes) };
        plugin_reply.status_code
    })
}

/// [control-thread] Closes the control socket and destroys the plugins. No other call may run meanwhile.
///
/// # Safety
/// `host` is running, or NULL. It must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memprof_host_stop(host: *mut memprof_running_host_t) {
    if host.is_null() {
        return;
    }
    // SAFETY: a box of `memprof_host_start`, whose ownership the caller returns.
    let host = unsafe { Box::from_raw(host) };
    catch_panic(|| {
        drop(host);
        MEMPROF_OK
    });
}

/// [thread-safe] Labels the memory that the calling thread allocates from now on. `memprof activate labels=KEY` records
/// labels in profiles, whether this program is a host or not. Returns the argument with which `memprof_label_pop` ends
/// the label. Costs some nanoseconds, and allocates only for a new key. Both texts are NUL-terminated and copied. If a
/// key is pushed twice, the last label counts. Labels are omitted beyond 64 keys and 612 bytes of a thread's labels;
/// values are truncated to 255 bytes.
///
/// # Safety
/// Both are NUL-terminated, or NULL for no label.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memprof_label_push(key: *const c_char, value: *const c_char) -> u16 {
    // The pop of this value ends no label.
    let mut before = Mark(u16::MAX);
    if key.is_null() || value.is_null() {
        return before.0;
    }
    // SAFETY: not null, and the caller promises NUL-terminated texts.
    let texts = [key, value].map(|text| unsafe { CStr::from_ptr(text) });
    catch_panic(|| {
        let [key, value] = texts.map(CStr::to_string_lossy);
        before = memprof_labels::push(&key, &value);
        MEMPROF_OK
    });
    before.0
}

/// [thread-safe] Ends the labels of the calling thread since the `memprof_label_push` that returned `before`, including
/// that one. Labels end in reverse order. A coroutine pops its labels before it leaves a thread, and pushes them again
/// on the thread where it resumes.
#[unsafe(no_mangle)]
pub extern "C" fn memprof_label_pop(before: u16) {
    memprof_labels::pop(Mark(before));
}

/// Reads the config file and starts the host. First makes the program's callback the logger of the crate `log`, unless
/// there is one already, and later sets its level to that in the config. The error is empty, because failures are
/// logged.
fn start_host(options: &memprof_host_options_t) -> Result<Host, ()> {
    // The logger receives the lines of this library, besides those of plugins.
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
        name: unsafe { leak_text(options.name) },
        // SAFETY: memprof_host.h: null or NUL-terminated.
        version: unsafe { leak_text(options.version) },
        log: logger,
        // SAFETY: memprof_host.h: null or a whole struct.
        jemalloc: unsafe { options.jemalloc.as_ref() }.copied(),
    };
    Host::start(&config, program).map_err(|error| log::error!("{error}"))
}

/// Copies a C string. The copy is leaked, because plugins borrow it until the process ends. Empty if `text` is null.
/// Bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn leak_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: not null, and the caller promises a NUL-terminated text.
    let text = unsafe { CStr::from_ptr(text) };
    Box::leak(text.to_string_lossy().into_owned().into_boxed_str())
}

/// Passes the content type of a reply to the program's callback `begin`, and the body to `write`. Skips a callback that
/// is NULL. Does nothing if `reply` is null.
///
/// # Safety
/// `reply` is null, or a host's reply as memprof.h describes it.
unsafe fn forward_reply(reply: *const memprof_reply_t, content_type: &str, body: &[u8]) {
    // SAFETY: the caller promises null or a whole struct.
    let Some(reply) = (unsafe { reply.as_ref() }) else {
        return;
    };
    if let Some(begin) = reply.begin {
        // SAFETY: memprof.h: a callback of the program, which borrows the text for the call.
        unsafe { begin(reply.ctx, memprof_str_t::new(content_type)) };
    }
    if let Some(write) = reply.write {
        // SAFETY: memprof.h: a callback of the program, which borrows the bytes for the call.
        unsafe { write(reply.ctx, memprof_str_t::from_bytes(body)) };
    }
}

/// Runs `work` and returns `MEMPROF_PANIC` if it panics: a panic must not leave an exported function.
fn catch_panic(work: impl FnOnce() -> memprof_status_t) -> memprof_status_t {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        // Dropping the payload would run foreign code, which may panic again.
        std::mem::forget(payload);
        MEMPROF_PANIC
    })
}

/// A logger that calls the program's callback.
struct CallbackLogger {
    log: memprof_host_log_t,
    ctx: *mut c_void,
}

// SAFETY: memprof_host.h: the callback may be called on any thread.
unsafe impl Send for CallbackLogger {}
// SAFETY: memprof_host.h: the callback may be called on several threads at once.
unsafe impl Sync for CallbackLogger {}

impl Log for CallbackLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.log.is_some() && metadata.level() <= log::max_level()
    }

    /// Passes a record to the program's callback, as one line. Does nothing without a callback, or if the record's
    /// level is not enabled.
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
        let message = one_line(&record.args().to_string());
        let (target, message) = (
            memprof_str_t::new(record.target()),
            memprof_str_t::new(&message),
        );
        // SAFETY: memprof_host.h: the callback is thread-safe, and the texts outlive the call.
        unsafe { log(self.ctx, level, target, message) }
    }

    fn flush(&self) {}
}
