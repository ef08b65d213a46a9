//! Apache Traffic Server 9 and later: a line `memory_profile.so [key=value …]` in plugin.config.
//!
//! `traffic_ctl plugin msg memory_profile dump` sends the message. The bus returns no reply, so the text of the reply
//! goes to diags.log, line by line. The message is handled on the thread that serves the management socket: a dump
//! delays that socket, but not the traffic.
#![expect(unsafe_code, reason = "the API of Traffic Server plugins")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{Level, LevelFilter};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_INVALID_ARGUMENT, MEMPROF_OK, memprof_plugin_entry_t};

use super::catch_panic;
use super::config::{self, Settings};
use super::host_symbols::find_symbol;
use super::instance::{Adapter, instance, start_instance};
use super::log::{ProgramLog, one_line, to_truncated_c_string};
use crate::reply::Reply;

/// ts/apidefs.h, `TS_LIFECYCLE_MSG_HOOK`.
const MESSAGE_HOOK: c_int = 5;
/// ts/apidefs.h, `TS_EVENT_LIFECYCLE_MSG`.
const MESSAGE_EVENT: c_int = 60105;
/// Largest length, in bytes, of a line of the log.
const LINE_LIMIT: usize = 1000;

/// ts/ts.h, `TSPluginRegistrationInfo`.
#[repr(C)]
struct RegistrationInfo {
    plugin_name: *const c_char,
    vendor_name: *const c_char,
    support_email: *const c_char,
}

/// ts/apidefs.h, `TSPluginMsg`.
#[repr(C)]
struct PluginMessage {
    tag: *const c_char,
    data: *const c_void,
    data_size: usize,
}

type Handler = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type Register = unsafe extern "C" fn(*const RegistrationInfo) -> c_int;
type ContCreate = unsafe extern "C" fn(Handler, *mut c_void) -> *mut c_void;
type LifecycleHookAdd = unsafe extern "C" fn(c_int, *mut c_void);
type Print = unsafe extern "C" fn(*const c_char, ...);

static LOG: ProgramLog = ProgramLog {
    // The reply to a message is logged, so the plugin's own line about it is not needed.
    level: LevelFilter::Warn,
    sink: write_log_line,
};

const ADAPTER: Adapter = Adapter::without_socket(&LOG);

/// Set when the hook is added: a plugin that is configured twice must reply once.
static IS_HOOKED: AtomicBool = AtomicBool::new(false);

/// Starts the plugin. Never fails, because Traffic Server would be restarted again and again.
///
/// # Safety
/// Traffic Server calls `TSPluginInit` with these arguments.
#[doc(hidden)]
pub unsafe fn init_plugin(
    entry: &'static memprof_plugin_entry_t,
    argc: c_int,
    argv: *const *const c_char,
) {
    catch_panic((), || {
        // SAFETY: the caller promises Traffic Server's arguments.
        let settings = unsafe { parse_options(argc, argv) };
        let id = start_instance(entry, &ADAPTER, settings).id();
        if let Err(missing) = register_plugin(id) {
            let line = format!("{id} gets no messages: Traffic Server has no {missing:?}");
            LOG.write_line(Level::Error, &line);
        }
    });
}

/// Parses the plugin's options, of the form `key=value`. Fails if one has no `=` or is not UTF-8, if a key is given
/// twice or has no name, if a value is invalid, or if the config file cannot be read or parsed.
///
/// # Safety
/// `argv` points to `argc` texts, of which the first is the plugin's file.
unsafe fn parse_options(argc: c_int, argv: *const *const c_char) -> Result<Settings, Failure> {
    let count = usize::try_from(argc).unwrap_or(0);
    let argv = if argv.is_null() {
        &[]
    } else {
        // SAFETY: not null, and the caller promises `argc` texts.
        unsafe { slice::from_raw_parts(argv, count) }
    };
    let pairs = argv
        .iter()
        .skip(1)
        .filter(|argument| !argument.is_null())
        .map(|argument| {
            // SAFETY: ts/ts.h: not null, NUL-terminated, and valid during the call.
            let argument = unsafe { CStr::from_ptr(*argument) };
            let text = argument.to_str().map_err(|error| {
                Failure::new(
                    MEMPROF_INVALID_ARGUMENT,
                    format!("config word {argument:?}: {error}"),
                )
            })?;
            config::split_pair(text)
        });
    config::parse_setting_pairs(pairs.collect::<Result<Vec<_>, _>>()?)
}

/// Registers the plugin, because Traffic Server ends if it does not register, and adds the hook for messages, once in a
/// process. The error is the name of a function that Traffic Server lacks.
fn register_plugin(id: &str) -> Result<(), &'static CStr> {
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
    // SAFETY: ts/ts.h declares functions of these types.
    let (register, create, add): (
        Option<Register>,
        Option<ContCreate>,
        Option<LifecycleHookAdd>,
    ) = unsafe {
        (
            find_symbol(c"TSPluginRegister"),
            find_symbol(c"TSContCreate"),
            find_symbol(c"TSLifecycleHookAdd"),
        )
    };
    let name = to_truncated_c_string(id, LINE_LIMIT);
    let info = RegistrationInfo {
        plugin_name: name.as_ptr(),
        vendor_name: c"memprof".as_ptr(),
        support_email: c"".as_ptr(),
    };
    // SAFETY: ts/ts.h: Traffic Server copies the texts.
    unsafe { register.ok_or(c"TSPluginRegister")?(&raw const info) };
    let create = create.ok_or(c"TSContCreate")?;
    let add = add.ok_or(c"TSLifecycleHookAdd")?;
    if IS_HOOKED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: ts/ts.h: without a mutex, Traffic Server may call the handler on any thread, which it allows.
    let handler = unsafe { create(handle_event, std::ptr::null_mut()) };
    // SAFETY: ts/ts.h: a continuation that was created above.
    unsafe { add(MESSAGE_HOOK, handler) };
    Ok(())
}

/// Handles a lifecycle event: sends a message for this plugin, and logs the reply. Ignores other events, and messages
/// for other plugins, which Traffic Server passes too.
unsafe extern "C" fn handle_event(_: *mut c_void, event: c_int, data: *mut c_void) -> c_int {
    catch_panic(0, || {
        let Some(instance) = instance().filter(|_| event == MESSAGE_EVENT && !data.is_null())
        else {
            return 0;
        };
        // SAFETY: ts/apidefs.h: not null, and the data of this event, which are valid during the call.
        let message = unsafe { &*data.cast::<PluginMessage>() };
        // SAFETY: ts/apidefs.h: the tag is null or NUL-terminated, and the data null or of its size.
        if let Some(data) = unsafe { message.data_for(instance.id()) } {
            log_reply(instance.send_message(data));
        }
        0
    })
}

impl PluginMessage {
    /// Returns the data of the message if its tag is `id`, otherwise `None`. Empty if the message has no data. Removes
    /// a terminating NUL, which version 9 counts and later versions do not.
    ///
    /// # Safety
    /// The tag is null or NUL-terminated, and the data null or of its size.
    unsafe fn data_for(&self, id: &str) -> Option<&[u8]> {
        if self.tag.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller promises a NUL-terminated tag.
        let tag = unsafe { CStr::from_ptr(self.tag) };
        if tag.to_bytes() != id.as_bytes() {
            return None;
        }
        if self.data.is_null() {
            return Some(&[]);
        }
        // SAFETY: not null, and the caller promises `data_size` bytes.
        let data = unsafe { slice::from_raw_parts(self.data.cast::<u8>(), self.data_size) };
        Some(data.strip_suffix(b"\0").unwrap_or(data))
    }
}

/// Logs the text of a reply: line by line, or as one line of an error if the message failed.
fn log_reply(reply: Reply) {
    let is_success = reply.status_code == MEMPROF_OK;
    let text = reply.into_text();
    if !is_success {
        return write_log_line(Level::Error, &one_line(&text));
    }
    for line in text.lines() {
        write_log_line(Level::Info, &one_line(line));
    }
}

/// Writes a log line. Drops it in a program that lacks `TSError`.
fn write_log_line(level: Level, text: &str) {
    let name = match level {
        Level::Error => c"TSError",
        Level::Warn => c"TSWarning",
        Level::Info | Level::Debug | Level::Trace => c"TSNote",
    };
    let text = to_truncated_c_string(&format!("memprof: {text}"), LINE_LIMIT);
    // SAFETY: ts/ts.h declares functions of this type. An older server has only `TSError`.
    let print: Option<Print> = unsafe { find_symbol(name) };
    // SAFETY: ts/ts.h declares functions of this type.
    if let Some(print) = print.or_else(|| unsafe { find_symbol(c"TSError") }) {
        // SAFETY: the text is an argument, not a format.
        unsafe { print(c"%s".as_ptr(), text.as_ptr()) };
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_traffic_server {
    ($how:ident, $entry:path) => {
        /// Entry point that Traffic Server calls after loading this library.
        ///
        /// # Safety
        /// Only Traffic Server calls it, according to ts/ts.h.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn TSPluginInit(
            argc: ::std::ffi::c_int,
            argv: *const *const ::std::ffi::c_char,
        ) {
            // SAFETY: the arguments of Traffic Server, unchanged.
            unsafe { $crate::adapters::traffic_server::init_plugin(&$entry, argc, argv) }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn terminating_nul_is_optional() {
        let check = |tag: Option<&CStr>, data: Option<&[u8]>, expected: Option<&[u8]>| {
            let message = PluginMessage {
                tag: tag.map_or(ptr::null(), CStr::as_ptr),
                data: data.map_or(ptr::null(), |data| data.as_ptr().cast()),
                data_size: data.map_or(0, <[u8]>::len),
            };
            // SAFETY: the texts live until the end of this closure.
            let data_for_plugin = unsafe { message.data_for("memory_profile") };
            assert_eq!(data_for_plugin, expected, "{data:?}");
        };
        let own = Some(c"memory_profile");
        check(own, Some(b"dump\0"), Some(b"dump"));
        check(own, Some(b"dump"), Some(b"dump"));
        check(own, Some(b"\0"), Some(b""));
        check(own, Some(b""), Some(b""));
        check(own, None, Some(b""));
        check(Some(c"memory_profil"), Some(b"dump"), None);
        check(Some(c"memory_profile2"), Some(b"dump"), None);
        check(Some(c"Memory_Profile"), Some(b"dump"), None);
        check(None, Some(b"dump"), None);
    }
}
