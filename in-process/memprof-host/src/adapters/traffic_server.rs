//! Apache Traffic Server 9 and later: a line `memory_profile.so [key=value …]` in plugin.config.
//!
//! `traffic_ctl plugin msg memory_profile dump` sends the message. The bus takes no reply, so what
//! a person reads of it goes to diags.log, line by line. The message is answered on the thread that serves the management
//! socket: a dump delays that, not the traffic.
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
use super::log::{ProgramLog, c_text, one_line};
use crate::reply::Reply;

/// ts/apidefs.h, `TS_LIFECYCLE_MSG_HOOK`.
const MESSAGE_HOOK: c_int = 5;
/// ts/apidefs.h, `TS_EVENT_LIFECYCLE_MSG`.
const MESSAGE_EVENT: c_int = 60105;
/// How much of a reply the log gets.
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
    // What a message does is told by its reply, which is logged; the plugin's own line about it
    // would say it again.
    level: LevelFilter::Warn,
    sink: write,
};

const ADAPTER: Adapter = Adapter::without_socket(&LOG);

/// Set when the hook is in place: a plugin that is named twice answers once.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// Loads the plugin. Never fails: Traffic Server would be started again and again.
///
/// # Safety
/// Traffic Server calls `TSPluginInit` with these arguments.
#[doc(hidden)]
pub unsafe fn init(
    entry: &'static memprof_plugin_entry_t,
    argc: c_int,
    argv: *const *const c_char,
) {
    catch_panic((), || {
        // SAFETY: promised by the caller.
        let settings = unsafe { settings(argc, argv) };
        let id = start_instance(entry, &ADAPTER, settings).id();
        if let Err(missing) = register(id) {
            let line = format!("{id} gets no messages: Traffic Server has no {missing:?}");
            LOG.line(Level::Error, &line);
        }
    });
}

/// # Safety
/// `argv` points to `argc` words, of which the first is the plugin's file.
unsafe fn settings(argc: c_int, argv: *const *const c_char) -> Result<Settings, Failure> {
    let count = usize::try_from(argc).unwrap_or(0);
    let argv = if argv.is_null() {
        &[]
    } else {
        // SAFETY: promised by the caller.
        unsafe { slice::from_raw_parts(argv, count) }
    };
    let words = argv
        .iter()
        .skip(1)
        .filter(|word| !word.is_null())
        .map(|word| {
            // SAFETY: NUL-terminated, and kept during the call.
            let word = unsafe { CStr::from_ptr(*word) };
            let text = word.to_str().map_err(|error| {
                Failure::new(
                    MEMPROF_INVALID_ARGUMENT,
                    format!("config word {word:?}: {error}"),
                )
            })?;
            config::split_pair(text)
        });
    config::parse(words.collect::<Result<Vec<_>, _>>()?)
}

/// Registers the plugin, without which Traffic Server ends, and asks for messages.
///
/// # Errors
/// The function that Traffic Server lacks.
fn register(id: &str) -> Result<(), &'static CStr> {
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
    // SAFETY: ts/ts.h declares them so.
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
    let name = c_text(id, LINE_LIMIT);
    let info = RegistrationInfo {
        plugin_name: name.as_ptr(),
        vendor_name: c"memprof".as_ptr(),
        support_email: c"".as_ptr(),
    };
    // SAFETY: Traffic Server copies the texts.
    unsafe { register.ok_or(c"TSPluginRegister")?(&raw const info) };
    if HOOKED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: without a mutex the handler may run on any thread, as it can.
    let handler = unsafe { create.ok_or(c"TSContCreate")?(handle, std::ptr::null_mut()) };
    // SAFETY: a continuation that was just made.
    unsafe { add.ok_or(c"TSLifecycleHookAdd")?(MESSAGE_HOOK, handler) };
    Ok(())
}

/// Gets every message to every plugin.
unsafe extern "C" fn handle(_: *mut c_void, event: c_int, data: *mut c_void) -> c_int {
    catch_panic(0, || {
        let Some(instance) = instance().filter(|_| event == MESSAGE_EVENT && !data.is_null())
        else {
            return 0;
        };
        // SAFETY: ts/apidefs.h: the data of this event, kept during the call.
        let message = unsafe { &*data.cast::<PluginMessage>() };
        // SAFETY: as above.
        if let Some(data) = unsafe { message.for_plugin(instance.id()) } {
            log_reply(instance.message(data));
        }
        0
    })
}

impl PluginMessage {
    /// The data of a message whose tag is exactly `id`. Version 9 counts the terminating NUL,
    /// later ones do not.
    ///
    /// # Safety
    /// The tag is null or NUL-terminated, and the data null or of its size.
    unsafe fn for_plugin(&self, id: &str) -> Option<&[u8]> {
        if self.tag.is_null() {
            return None;
        }
        // SAFETY: promised by the caller.
        let tag = unsafe { CStr::from_ptr(self.tag) };
        if tag.to_bytes() != id.as_bytes() {
            return None;
        }
        if self.data.is_null() {
            return Some(&[]);
        }
        // SAFETY: promised by the caller.
        let data = unsafe { slice::from_raw_parts(self.data.cast::<u8>(), self.data_size) };
        Some(data.strip_suffix(b"\0").unwrap_or(data))
    }
}

/// Logs what a person reads of a reply.
fn log_reply(reply: Reply) {
    let done = reply.status_code == MEMPROF_OK;
    let text = reply.into_text();
    if !done {
        return write(Level::Error, &one_line(&text));
    }
    for line in text.lines() {
        write(Level::Info, &one_line(line));
    }
}

fn write(level: Level, text: &str) {
    let name = match level {
        Level::Error => c"TSError",
        Level::Warn => c"TSWarning",
        Level::Info | Level::Debug | Level::Trace => c"TSNote",
    };
    let text = c_text(&format!("memprof: {text}"), LINE_LIMIT);
    // SAFETY: ts/ts.h declares them so. An older server has only `TSError`.
    let print: Option<Print> = unsafe { find_symbol(name) };
    // SAFETY: as above.
    if let Some(print) = print.or_else(|| unsafe { find_symbol(c"TSError") }) {
        // SAFETY: the text is no format.
        unsafe { print(c"%s".as_ptr(), text.as_ptr()) };
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_traffic_server {
    ($how:ident, $entry:path) => {
        /// What Traffic Server calls when it has loaded this library.
        ///
        /// # Safety
        /// Only Traffic Server calls it, as ts/ts.h says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn TSPluginInit(
            argc: ::std::ffi::c_int,
            argv: *const *const ::std::ffi::c_char,
        ) {
            // SAFETY: the arguments of Traffic Server, unchanged.
            unsafe { $crate::adapters::traffic_server::init(&$entry, argc, argv) }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn the_terminating_nul_may_be_counted_or_not() {
        let check = |tag: Option<&CStr>, data: Option<&[u8]>, expected: Option<&[u8]>| {
            let message = PluginMessage {
                tag: tag.map_or(ptr::null(), CStr::as_ptr),
                data: data.map_or(ptr::null(), |data| data.as_ptr().cast()),
                data_size: data.map_or(0, <[u8]>::len),
            };
            // SAFETY: made from texts that live until here.
            let found = unsafe { message.for_plugin("memory_profile") };
            assert_eq!(found, expected, "{data:?}");
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
