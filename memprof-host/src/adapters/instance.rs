//! The plugin's one instance in a program that was not written for it.
#![expect(unsafe_code, reason = "the ABI boundary: the entry of this library")]

use std::ffi::{CStr, c_char};
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use log::Level;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{
    MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_PANIC, memprof_plugin_entry_t,
};
use memprof_plugin_abi::{JSON, TEXT, raw::MEMPROF_OK};

use super::config::{Control, Settings};
use super::control;
use super::log::Lines;
use crate::instance::{Instance, text};
use crate::program::Program;
use crate::protocol::{FRAME_LIMIT, split_message};
use crate::router::{Reply, Router};

/// One plugin in one process, on however many adapters.
#[derive(Debug)]
pub(super) struct AdapterInstance {
    entry: &'static memprof_plugin_entry_t,
    id: String,
    program: Program,
    router: Arc<Router>,
    /// Why the plugin could not be made.
    failure: Option<Failure>,
    /// Some of the plugin's keys were given when it was made.
    has_keys: bool,
}

/// What a message may ask its reply to be.
const FORMATS: [&str; 2] = ["format=json", "format=text"];

/// A reply for somebody who may be a person.
#[derive(Debug)]
pub(super) struct Answer {
    /// The plugin did what was asked.
    pub(super) is_done: bool,
    pub(super) body: Said,
}

/// What an [`Answer`] says.
#[derive(Debug)]
pub(super) enum Said {
    /// To be read.
    Text(String),
    /// To be kept: a dump, or JSON.
    Bytes(Vec<u8>),
}

/// The adapter on which a program loads the plugin.
#[derive(Debug)]
pub(super) struct Adapter {
    /// The program's log.
    pub(super) log: &'static Lines,
    /// The control socket where the config says nothing.
    pub(super) control: Control,
    /// It has a thread of ours, not one of the program's.
    pub(super) is_own_thread: bool,
}

impl Adapter {
    /// Of a program that calls the plugin on threads of its own, and has a bus for messages: no
    /// control socket unless the config asks for one.
    pub(super) const fn of(log: &'static Lines) -> Self {
        Self {
            log,
            control: Control::Off,
            is_own_thread: false,
        }
    }
}

/// Null, or leaked: a thread may use it for as long as it likes. Only [`remove`] frees it.
static INSTANCE: AtomicPtr<AdapterInstance> = AtomicPtr::new(ptr::null_mut());

/// The process in which a thread makes the instance. A child that was forked meanwhile does not
/// have that thread, and makes its own instance.
static MAKER: AtomicU32 = AtomicU32::new(0);

/// The instance, once an adapter has made it.
pub(super) fn instance() -> Option<&'static AdapterInstance> {
    // SAFETY: null, or leaked by `settle` or `make`.
    unsafe { INSTANCE.load(Ordering::Acquire).as_ref() }
}

/// Destroys the instance.
///
/// # Safety
/// Nobody uses it, and nobody asks for it meanwhile.
#[cfg(feature = "adapter-attached")]
pub(super) unsafe fn remove() {
    let removed = INSTANCE.swap(ptr::null_mut(), Ordering::AcqRel);
    if !removed.is_null() {
        // SAFETY: leaked by `settle` or `make`; nobody uses it, as the caller promises.
        drop(unsafe { Box::from_raw(removed) });
    }
}

/// Makes the instance, where there is none.
///
/// # Errors
/// Why the plugin cannot be made; nothing is changed then.
#[cfg(feature = "adapter-attached")]
pub(super) fn make(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: Settings,
    has_keys: bool,
) -> Result<&'static AdapterInstance, Failure> {
    let mut made = Box::new(AdapterInstance::new(entry, adapter, Ok(settings)));
    made.has_keys = has_keys;
    match made.failure.take() {
        Some(failure) => Err(failure),
        None => {
            let made = Box::leak(made);
            INSTANCE.store(ptr::from_mut(made), Ordering::Release);
            Ok(made)
        }
    }
}

/// Makes the instance, or joins the one that another adapter made, and opens the control socket. What
/// is wrong is logged in one line, and answered to every message.
pub(super) fn settle(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: Result<Settings, Failure>,
) -> &'static AdapterInstance {
    let control = match &settings {
        Ok(Settings { control, .. }) => control.clone(),
        Err(_) => None,
    };
    let instance = loop {
        if let Some(instance) = instance() {
            let message = format!("{} is loaded already: its first config stays", instance.id);
            adapter.log.line(Level::Warn, &message);
            break instance;
        }
        if claim() {
            // Made before it is put there: a child that is forked meanwhile must not wait for a
            // thread that it does not have.
            let made = Box::leak(Box::new(AdapterInstance::new(entry, adapter, settings)));
            INSTANCE.store(ptr::from_mut(made), Ordering::Release);
            break made;
        }
        // Another thread makes it, which takes milliseconds.
        thread::sleep(Duration::from_millis(1));
    };
    if adapter.is_own_thread {
        instance.enter_thread();
    }
    // The program goes on without.
    let _logged = instance.open_control(adapter, control.as_ref());
    instance
}

/// True for the one thread of this process that is to make the instance.
fn claim() -> bool {
    let own = process::id();
    MAKER.swap(own, Ordering::AcqRel) != own
}

impl AdapterInstance {
    fn new(
        entry: &'static memprof_plugin_entry_t,
        adapter: &Adapter,
        settings: Result<Settings, Failure>,
    ) -> Self {
        // SAFETY: the entry's texts live as long as it does.
        let id = unsafe { text(entry.id) };
        let program = Program {
            name: Box::leak(program_name().into_boxed_str()),
            version: "",
            log: adapter.log,
            jemalloc: None,
        };
        let create = || {
            let config = settings?.config_text();
            // SAFETY: the entry of the library that this code is part of; it is never unloaded
            // (`-z nodelete`).
            unsafe { Instance::create(entry, program, &config) }
        };
        let plugin = panic::catch_unwind(AssertUnwindSafe(create)).unwrap_or_else(|payload| {
            std::mem::forget(payload);
            Err(Failure::new(MEMPROF_PANIC, "loading the plugin panicked"))
        });
        if let Err(failure) = &plugin {
            adapter.log.line(Level::Error, &failure.to_string());
        }
        let failure = plugin.as_ref().err().cloned();
        let mut router = Router::default();
        router.add(id.clone(), plugin);
        Self {
            entry,
            id,
            program,
            router: Arc::new(router),
            failure,
            has_keys: true,
        }
    }

    /// Whether some of the plugin's keys were given when it was made.
    #[cfg(feature = "adapter-attached")]
    pub(super) fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// Opens the control socket, once in a process, where the config says so or else the adapter.
    ///
    /// # Errors
    /// Why not, which was logged.
    pub(super) fn open_control(
        &self,
        adapter: &Adapter,
        configured: Option<&Control>,
    ) -> Result<(), Failure> {
        let control = configured.unwrap_or(&adapter.control);
        control::open(self.program, Arc::clone(&self.router), adapter.log, control)
    }

    /// Tells the plugin that the calling thread is one of ours.
    pub(super) fn enter_thread(&self) {
        self.router.enter_thread();
    }

    /// The plugin's name.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Sends a message that is one text: a name, a blank, arguments.
    pub(super) fn message(&self, data: &[u8]) -> Reply {
        if data.len() > FRAME_LIMIT {
            let message = format!(
                "a message has at most {FRAME_LIMIT} bytes, this one has {}",
                data.len()
            );
            return Reply::failed(&Failure::new(MEMPROF_INVALID_ARGUMENT, message));
        }
        // Bytes that are no text make the name unknown or the argument invalid.
        let data = String::from_utf8_lossy(data);
        let (name, args) = split_message(&data);
        self.router
            .message(&self.id, name, args)
            .unwrap_or_else(|unknown| {
                Reply::failed(&Failure::new(MEMPROF_INTERNAL, unknown.to_string()))
            })
    }

    /// The reply to a message that a person types: the text, unless the message asks for
    /// `format=json`. `stats`, which has that argument itself, gets it too.
    pub(super) fn answer(&self, data: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(data);
        let (name, args) = split_message(&text);
        let format = args.split(' ').find(|word| FORMATS.contains(word));
        let is_the_plugins = || self.usage(name).contains("format=");
        let reply = match format {
            Some(word) if data.len() <= FRAME_LIMIT && !is_the_plugins() => {
                self.message(format!("{name} {}", args.replacen(word, "", 1)).as_bytes())
            }
            _ => self.message(data),
        };
        let is_done = reply.status_code == MEMPROF_OK;
        let is_object = reply.content_type == JSON;
        let wants_text = is_object && format != Some(FORMATS[0]) || reply.content_type == TEXT;
        Answer {
            is_done,
            body: if wants_text {
                Said::Text(reply.into_text())
            } else {
                match reply.body.into_bytes() {
                    Ok(bytes) => Said::Bytes(bytes),
                    Err(error) => Said::Text(error.to_string()),
                }
            },
        }
    }

    /// The arguments of a message as they are described; empty for one that is none.
    fn usage(&self, name: &str) -> String {
        let mut messages = self.messages();
        let found = messages.find(|[known, ..]| known == name);
        found.map_or_else(String::new, |[_, usage, _]| usage)
    }

    /// Each message as a person would type it, and what it does.
    pub(super) fn help(&self) -> Vec<String> {
        self.messages()
            .map(|[name, usage, help]| format!("{:<32} {help}", format!("{name} {usage}")))
            .collect()
    }

    /// Name, usage and help of each message.
    fn messages(&self) -> impl Iterator<Item = [String; 3]> {
        (0..self.entry.message_count).map(|at| {
            // SAFETY: memprof.h: `messages` points to `message_count` pointers.
            let message = unsafe { self.entry.messages.add(at) };
            // SAFETY: as above.
            let message = unsafe { *message };
            // SAFETY: each of them points to a message, which lives as long as the process.
            let message = unsafe { &*message };
            // SAFETY: and so do its texts.
            [message.name, message.usage, message.help].map(|part| unsafe { text(part) })
        })
    }
}

/// The file name that the program was started by: a link's own name, a script's for a script.
fn program_name() -> String {
    // SAFETY: getauxval(3) reads a constant of this process.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    if name.is_null() {
        return "program".to_owned();
    }
    // SAFETY: the kernel puts a NUL-terminated text there (getauxval(3), AT_EXECFN).
    let path = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}
