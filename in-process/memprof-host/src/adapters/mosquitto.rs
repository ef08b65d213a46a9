//! Mosquitto 2: `plugin /path/memory_profile.so`, with options `plugin_opt_<key> <value>`.
//!
//! A message is published to `$CONTROL/<plugin>/v1`; its sender, and nobody else, gets the reply
//! on `$CONTROL/<plugin>/v1/response`: what a person reads of it, or the JSON with `format=json`. It is answered on the broker's only thread, which waits for
//! a dump. Mosquitto's log belongs to that thread: lines of others, which only the control socket
//! has, are not written.
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
use super::host_symbols::find;
use super::instance::{Adapter, AdapterInstance, instance, start_instance};
use super::log::{ProgramLog, c_text};
use super::rendered_reply::ReplyContent;

/// `mosquitto_plugin.h`, `MOSQ_PLUGIN_VERSION`.
const VERSION: c_int = 5;
/// mosquitto.h, `MOSQ_ERR_SUCCESS`.
const SUCCESS: c_int = 0;
/// `mosquitto_broker.h`, `MOSQ_EVT_CONTROL`.
const CONTROL: c_int = 6;
/// Mosquitto cuts a line off near there.
const LINE_LIMIT: usize = 900;

/// mosquitto.h, `struct mosquitto_opt`.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Opt {
    key: *const c_char,
    value: *const c_char,
}

/// `mosquitto_broker.h`, `struct mosquitto_evt_control`, as far as it is read.
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

/// What this module uses of `mosquitto_broker.h`.
#[derive(Clone, Copy, Debug)]
struct Api {
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

/// The broker's functions, its thread, and the topic of replies.
#[derive(Debug)]
struct Broker {
    api: Api,
    thread: ThreadId,
}

static BROKER: LockFreeOnce<Broker> = LockFreeOnce::new();

static LOG: ProgramLog = ProgramLog {
    level: LevelFilter::Info,
    sink: write,
};

const ADAPTER: Adapter = Adapter::of(&LOG);

impl Api {
    fn find() -> Option<Self> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: mosquitto_broker.h declares them so, since Mosquitto 2.0.
        Some(unsafe {
            Self {
                log_printf: find(c"mosquitto_log_printf")?,
                client_id: find(c"mosquitto_client_id")?,
                publish_copy: find(c"mosquitto_broker_publish_copy")?,
                callback_register: find(c"mosquitto_callback_register")?,
            }
        })
    }
}

/// The version of the plugin interface that is spoken, or -1.
///
/// # Safety
/// Mosquitto calls `mosquitto_plugin_version` with these arguments.
#[doc(hidden)]
pub unsafe fn version(count: c_int, versions: *const c_int) -> c_int {
    // SAFETY: promised by the caller.
    let versions = unsafe { elements(versions, count) };
    if versions.contains(&VERSION) {
        VERSION
    } else {
        -1
    }
}

/// Loads the plugin. Never fails, because the broker would not start.
///
/// # Safety
/// Mosquitto calls `mosquitto_plugin_init` with these arguments.
#[doc(hidden)]
pub unsafe fn init(
    entry: &'static memprof_plugin_entry_t,
    identifier: *mut c_void,
    options: *const Opt,
    count: c_int,
) -> c_int {
    catch_panic(SUCCESS, || {
        let Some(api) = Api::find() else {
            return SUCCESS;
        };
        let thread = thread::current().id();
        let broker = BROKER.get_or_set(Broker { api, thread });
        // SAFETY: promised by the caller.
        let settings = unsafe { settings(options, count) };
        let instance = start_instance(entry, &ADAPTER, settings);
        register(broker, identifier, instance);
        SUCCESS
    })
}

/// # Safety
/// `options` points to `count` options of Mosquitto's.
unsafe fn settings(options: *const Opt, count: c_int) -> Result<Settings, Failure> {
    // SAFETY: promised by the caller.
    let options = unsafe { elements(options, count) };
    let text = |text: *const c_char| {
        if text.is_null() {
            return Ok("");
        }
        // SAFETY: mosquitto.h: NUL-terminated, and kept during the call.
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
    config::parse(pairs.collect::<Result<Vec<_>, _>>()?)
}

fn topic(instance: &AdapterInstance) -> String {
    format!("$CONTROL/{}/v1", instance.id())
}

fn register(broker: &Broker, identifier: *mut c_void, instance: &AdapterInstance) {
    let topic = c_text(&topic(instance), LINE_LIMIT);
    // SAFETY: mosquitto_broker.h; the broker copies the topic, and the function's library is
    // never unloaded.
    let status = unsafe {
        (broker.api.callback_register)(
            identifier,
            CONTROL,
            answer,
            topic.as_ptr().cast(),
            std::ptr::null_mut(),
        )
    };
    if status != SUCCESS {
        let line = format!("{topic:?} is not answered here: the broker says {status}");
        LOG.line(Level::Debug, &line);
    }
}

/// Answers what was published to the topic.
unsafe extern "C" fn answer(_: c_int, event: *mut c_void, _: *mut c_void) -> c_int {
    catch_panic(SUCCESS, || {
        // SAFETY: mosquitto_broker.h: the data of a control event.
        let event = unsafe { event.cast::<ControlEvent>().as_ref() };
        let (Some(event), Some(broker), Some(instance)) = (event, BROKER.get(), instance()) else {
            return SUCCESS;
        };
        // SAFETY: mosquitto_broker.h: so many bytes, kept during the call.
        let message = unsafe { elements(event.payload.cast::<u8>(), event.payload_length) };
        let bytes = match instance.rendered_reply(message).body {
            ReplyContent::Text(text) => text.into_bytes(),
            ReplyContent::Bytes(bytes) => bytes,
        };
        publish(broker, event.client, instance, &bytes);
        SUCCESS
    })
}

fn publish(broker: &Broker, client: *const c_void, instance: &AdapterInstance, bytes: &[u8]) {
    let topic: CString = c_text(&format!("{}/response", topic(instance)), LINE_LIMIT);
    // SAFETY: the client of the event.
    let client = unsafe { (broker.api.client_id)(client) };
    // A reply to nobody would go to all.
    if client.is_null() {
        return;
    }
    // SAFETY: the broker copies topic and bytes.
    let status = unsafe {
        (broker.api.publish_copy)(
            client,
            topic.as_ptr(),
            bytes.len() as c_int,
            bytes.as_ptr().cast(),
            0,
            false,
            std::ptr::null_mut(),
        )
    };
    if status != SUCCESS {
        LOG.line(
            Level::Warn,
            &format!("a reply was not published: error {status}"),
        );
    }
}

/// # Safety
/// `first` is null or points to `count` elements.
unsafe fn elements<'a, T>(first: *const T, count: impl TryInto<usize>) -> &'a [T] {
    match count.try_into() {
        // SAFETY: promised by the caller.
        Ok(count) if !first.is_null() => unsafe { slice::from_raw_parts(first, count) },
        _ => &[],
    }
}

fn write(level: Level, text: &str) {
    // mosquitto.h, `MOSQ_LOG_*`.
    let level = match level {
        Level::Error => 1 << 3,
        Level::Warn => 1 << 2,
        Level::Info => 1 << 1,
        Level::Debug | Level::Trace => 1 << 4,
    };
    let text = c_text(&format!("memprof: {text}"), LINE_LIMIT);
    if let Some(broker) = BROKER.get()
        && broker.thread == thread::current().id()
    {
        // SAFETY: the text is no format, and this is the thread that logs.
        unsafe { (broker.api.log_printf)(level, c"%s".as_ptr(), text.as_ptr()) };
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_mosquitto {
    ($how:ident, $entry:path) => {
        /// Which interface Mosquitto and this library share.
        ///
        /// # Safety
        /// Only Mosquitto calls it, as mosquitto_plugin.h says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn mosquitto_plugin_version(
            count: ::std::ffi::c_int,
            versions: *const ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Mosquitto, unchanged.
            unsafe { $crate::adapters::mosquitto::version(count, versions) }
        }

        /// What Mosquitto calls when it has loaded this library.
        ///
        /// # Safety
        /// Only Mosquitto calls it, as mosquitto_plugin.h says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn mosquitto_plugin_init(
            identifier: *mut ::std::ffi::c_void,
            _data: *mut *mut ::std::ffi::c_void,
            options: *const $crate::adapters::mosquitto::Opt,
            count: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Mosquitto, unchanged.
            unsafe { $crate::adapters::mosquitto::init(&$entry, identifier, options, count) }
        }

        /// What Mosquitto calls at its end: nothing is left to do.
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
