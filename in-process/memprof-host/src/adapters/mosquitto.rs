//! Mosquitto 2: `plugin /path/memory_profile.so`, with options `plugin_opt_<key> <value>`.
//!
//! A message is published to `$CONTROL/<plugin>/v1`; only its sender gets the reply, on
//! `$CONTROL/<plugin>/v1/response`: a text, or the JSON if the message has `format=json`. The message is handled on the
//! broker's only thread, which waits for a dump. Mosquitto's log may be used only on that thread: lines from other
//! threads, which only the control socket has, are dropped.
#![expect(unsafe_code, reason = "the API of Mosquitto plugins")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::slice;
use std::thread::{self, ThreadId};

use log::{Level, LevelFilter};
use memprof_own::LockFreeOnce;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_INVALID_ARGUMENT, memprof_plugin_entry_t};

use super::catch_panic;
use super::config::{self, Settings};
use super::host_symbols::find_symbol;
use super::instance::{Adapter, AdapterInstance, instance, start_instance};
use super::log::{ProgramLog, to_truncated_c_string};
use super::rendered_reply::ReplyContent;

/// `mosquitto_plugin.h`, `MOSQ_PLUGIN_VERSION`.
const VERSION: c_int = 5;
/// mosquitto.h, `MOSQ_ERR_SUCCESS`.
const SUCCESS: c_int = 0;
/// `mosquitto_broker.h`, `MOSQ_EVT_CONTROL`.
const CONTROL: c_int = 6;
/// Largest length of a log line or topic in bytes; Mosquitto truncates lines near it.
const LINE_LIMIT: usize = 900;

/// mosquitto.h, `struct mosquitto_opt`.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Opt {
    key: *const c_char,
    value: *const c_char,
}

/// First fields of `struct mosquitto_evt_control` in `mosquitto_broker.h`.
#[repr(C)]
struct ControlEvent {
    future: *mut c_void,
    client: *const c_void,
    topic: *const c_char,
    payload: *const c_void,
    properties: *const c_void,
    reason_string: *mut c_char,
    payload_length: u32,
}

type Callback = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void) -> c_int;

/// Functions of `mosquitto_broker.h`.
#[derive(Clone, Copy, Debug)]
struct BrokerApi {
    log_printf: unsafe extern "C" fn(c_int, *const c_char, ...),
    client_id: unsafe extern "C" fn(*const c_void) -> *const c_char,
    publish_copy: unsafe extern "C" fn(
        *const c_char,
        *const c_char,
        c_int,
        *const c_void,
        c_int,
        bool,
        *mut c_void,
    ) -> c_int,
    callback_register:
        unsafe extern "C" fn(*mut c_void, c_int, Callback, *const c_void, *mut c_void) -> c_int,
}

/// Functions of the broker, and its thread.
#[derive(Debug)]
struct Broker {
    api: BrokerApi,
    thread: ThreadId,
}

static BROKER: LockFreeOnce<Broker> = LockFreeOnce::new();

static LOG: ProgramLog = ProgramLog {
    level: LevelFilter::Info,
    sink: write_log_line,
};

const ADAPTER: Adapter = Adapter::without_socket(&LOG);

impl BrokerApi {
    /// Looks up Mosquitto's functions in the host. `None` if one is missing.
    fn find() -> Option<Self> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: mosquitto_broker.h declares functions of these types, since Mosquitto 2.0.
        Some(unsafe {
            Self {
                log_printf: find_symbol(c"mosquitto_log_printf")?,
                client_id: find_symbol(c"mosquitto_client_id")?,
                publish_copy: find_symbol(c"mosquitto_broker_publish_copy")?,
                callback_register: find_symbol(c"mosquitto_callback_register")?,
            }
        })
    }
}

/// Returns the version of the plugin interface that this plugin uses, -1 if it is not among the versions that Mosquitto
/// supports.
///
/// # Safety
/// Mosquitto calls `mosquitto_plugin_version` with these arguments.
#[doc(hidden)]
pub unsafe fn supported_version(count: c_int, versions: *const c_int) -> c_int {
    // SAFETY: the caller promises Mosquitto's arguments: `count` versions.
    let versions = unsafe { slice_of_c_array(versions, count) };
    if versions.contains(&VERSION) {
        VERSION
    } else {
        -1
    }
}

/// Starts the plugin. Always succeeds, because otherwise the broker would not start. Does nothing in a broker that
/// lacks a needed function.
///
/// # Safety
/// Mosquitto calls `mosquitto_plugin_init` with these arguments.
#[doc(hidden)]
pub unsafe fn init_plugin(
    entry: &'static memprof_plugin_entry_t,
    identifier: *mut c_void,
    options: *const Opt,
    count: c_int,
) -> c_int {
    catch_panic(SUCCESS, || {
        let Some(api) = BrokerApi::find() else {
            return SUCCESS;
        };
        let thread = thread::current().id();
        let broker = BROKER.get_or_set(Broker { api, thread });
        // SAFETY: the caller promises Mosquitto's arguments: `count` options.
        let settings = unsafe { parse_options(options, count) };
        let instance = start_instance(entry, &ADAPTER, settings);
        register_handler(broker, identifier, instance);
        SUCCESS
    })
}

/// Parses the plugin's options, each a key and a value. A missing text is an empty one. Fails if a text is not UTF-8,
/// if a key is given twice or has no name, if a value is invalid, or if the config file cannot be read or parsed.
///
/// # Safety
/// `options` points to `count` options of Mosquitto's.
unsafe fn parse_options(options: *const Opt, count: c_int) -> Result<Settings, Failure> {
    // SAFETY: the caller promises `count` options.
    let options = unsafe { slice_of_c_array(options, count) };
    let text = |text: *const c_char| {
        if text.is_null() {
            return Ok("");
        }
        // SAFETY: mosquitto.h: not null, NUL-terminated, and valid during the call.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().map_err(|error| {
            Failure::new(
                MEMPROF_INVALID_ARGUMENT,
                format!("option {text:?}: {error}"),
            )
        })
    };
    let pairs = options
        .iter()
        .map(|option| Ok((text(option.key)?, text(option.value)?)));
    config::parse_setting_pairs(pairs.collect::<Result<Vec<_>, _>>()?)
}

/// Returns the topic of messages to the plugin.
fn control_topic(instance: &AdapterInstance) -> String {
    format!("$CONTROL/{}/v1", instance.id())
}

/// Registers the handler of messages to the plugin's topic. A failure is logged as a warning.
fn register_handler(broker: &Broker, identifier: *mut c_void, instance: &AdapterInstance) {
    let topic = to_truncated_c_string(&control_topic(instance), LINE_LIMIT);
    // SAFETY: mosquitto_broker.h: the broker copies the topic; the handler is in a library that is never unloaded.
    let status = unsafe {
        (broker.api.callback_register)(
            identifier,
            CONTROL,
            handle_control_event,
            topic.as_ptr().cast(),
            std::ptr::null_mut(),
        )
    };
    if status != SUCCESS {
        let line = format!("{topic:?} is not answered here: the broker says {status}");
        LOG.write_line(Level::Warn, &line);
    }
}

/// Sends a message that was published to the plugin's topic, and publishes the reply. Always returns `SUCCESS`, so that
/// the broker continues.
unsafe extern "C" fn handle_control_event(_: c_int, event: *mut c_void, _: *mut c_void) -> c_int {
    catch_panic(SUCCESS, || {
        // SAFETY: mosquitto_broker.h: the data of a control event, or null.
        let event = unsafe { event.cast::<ControlEvent>().as_ref() };
        let (Some(event), Some(broker), Some(instance)) = (event, BROKER.get(), instance()) else {
            return SUCCESS;
        };
        // SAFETY: mosquitto_broker.h: `payload_length` bytes, which are valid during the call.
        let message = unsafe { slice_of_c_array(event.payload.cast::<u8>(), event.payload_length) };
        let bytes = match instance.send_and_render(message).body {
            ReplyContent::Text(text) => text.into_bytes(),
            ReplyContent::Bytes(bytes) => bytes,
        };
        publish_reply(broker, event.client, instance, &bytes);
        SUCCESS
    })
}

/// Publishes a reply to the client that sent the message. Does nothing if the client has no id. A failure is logged.
fn publish_reply(broker: &Broker, client: *const c_void, instance: &AdapterInstance, bytes: &[u8]) {
    let topic: CString =
        to_truncated_c_string(&format!("{}/response", control_topic(instance)), LINE_LIMIT);
    // SAFETY: mosquitto_broker.h: the client of the event that is being handled.
    let client = unsafe { (broker.api.client_id)(client) };
    // Without a client's id, the broker would publish the reply to all subscribers.
    if client.is_null() {
        return;
    }
    // SAFETY: mosquitto_broker.h: the broker copies topic and bytes.
    let status = unsafe {
        (broker.api.publish_copy)(
            client,
            topic.as_ptr(),
            bytes.len() as c_int,
            bytes.as_ptr().cast(),
            // QoS 0, not retained, without properties.
            0,
            false,
            std::ptr::null_mut(),
        )
    };
    if status != SUCCESS {
        LOG.write_line(
            Level::Warn,
            &format!("a reply was not published: error {status}"),
        );
    }
}

/// Returns a C array as a slice; empty if `first` is null or `count` negative.
///
/// # Safety
/// `first` is null or points to `count` elements, which outlive the slice.
unsafe fn slice_of_c_array<'a, T>(first: *const T, count: impl TryInto<usize>) -> &'a [T] {
    match count.try_into() {
        // SAFETY: not null, and the caller promises `count` elements.
        Ok(count) if !first.is_null() => unsafe { slice::from_raw_parts(first, count) },
        _ => &[],
    }
}

/// Writes a log line, if the calling thread is the broker's. Drops lines of other threads.
fn write_log_line(level: Level, text: &str) {
    // The numbers are `MOSQ_LOG_*` of mosquitto.h.
    let level = match level {
        Level::Error => 1 << 3,
        Level::Warn => 1 << 2,
        Level::Info => 1 << 1,
        Level::Debug | Level::Trace => 1 << 4,
    };
    let text = to_truncated_c_string(&format!("memprof: {text}"), LINE_LIMIT);
    if let Some(broker) = BROKER.get()
        && broker.thread == thread::current().id()
    {
        // SAFETY: the text is an argument, not a format, and this thread may log.
        unsafe { (broker.api.log_printf)(level, c"%s".as_ptr(), text.as_ptr()) };
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_mosquitto {
    ($how:ident, $entry:path) => {
        /// Entry point that returns the version of the plugin interface to use, out of the `count` versions that
        /// Mosquitto supports.
        ///
        /// # Safety
        /// Only Mosquitto calls it, according to mosquitto_plugin.h.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn mosquitto_plugin_version(
            count: ::std::ffi::c_int,
            versions: *const ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Mosquitto, unchanged.
            unsafe { $crate::adapters::mosquitto::supported_version(count, versions) }
        }

        /// Entry point that Mosquitto calls after loading this library.
        ///
        /// # Safety
        /// Only Mosquitto calls it, according to mosquitto_plugin.h.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn mosquitto_plugin_init(
            identifier: *mut ::std::ffi::c_void,
            _data: *mut *mut ::std::ffi::c_void,
            options: *const $crate::adapters::mosquitto::Opt,
            count: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Mosquitto, unchanged.
            unsafe { $crate::adapters::mosquitto::init_plugin(&$entry, identifier, options, count) }
        }

        /// Entry point that Mosquitto calls at its end. Does nothing.
        #[unsafe(no_mangle)]
        pub extern "C" fn mosquitto_plugin_cleanup(
            _data: *mut ::std::ffi::c_void,
            _options: *const $crate::adapters::mosquitto::Opt,
            _count: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            0
        }
    };
}
