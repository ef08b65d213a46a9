//! The plugin's one instance in a program that was not written for it.
#![expect(unsafe_code, reason = "the ABI boundary: the entry of this library")]

use std::ffi::{CStr, c_char};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use log::Level;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_PANIC, memprof_plugin_entry_t, memprof_plugin_t};

use super::config::{Control, Settings};
use super::log::ProgramLog;
use super::{catch_panic, control, library_copies};
use crate::instance::{Instance, copy_text};
use crate::program::HostProgram;
use crate::router::Router;

/// One plugin in one process, on however many adapters.
#[derive(Debug)]
pub(super) struct AdapterInstance {
    pub(super) entry: &'static memprof_plugin_entry_t,
    pub(super) id: String,
    program: HostProgram,
    pub(super) router: Arc<Router>,
    /// Why the plugin could not be made.
    failure: Option<Failure>,
    /// Some of the plugin's keys were given when it was made.
    has_keys: bool,
}

/// The adapter on which a program loads the plugin.
#[derive(Debug)]
pub(super) struct Adapter {
    /// The program's log.
    pub(super) log: &'static ProgramLog,
    /// The control socket where the config says nothing.
    pub(super) control: Control,
}

impl Adapter {
    /// Of a program that calls the plugin on threads of its own, and has a bus for messages: no
    /// control socket unless the config asks for one.
    pub(super) const fn of(log: &'static ProgramLog) -> Self {
        Self {
            log,
            control: Control::Off,
        }
    }
}

/// Null, or leaked: a thread may use it for as long as it likes. Only [`remove`] frees it.
static INSTANCE: AtomicPtr<AdapterInstance> = AtomicPtr::new(ptr::null_mut());

/// Somebody whom nobody can ask uses the instance, so it stays.
static SHARED: AtomicBool = AtomicBool::new(false);

/// The instance, once an adapter has made it.
pub(super) fn instance() -> Option<&'static AdapterInstance> {
    // SAFETY: null, or leaked by `settle` or `make`.
    unsafe { INSTANCE.load(Ordering::SeqCst).as_ref() }
}

/// The instance, which stays from now on.
fn share_instance() -> Option<&'static AdapterInstance> {
    // Before the instance is read: `remove` looks in the other order.
    SHARED.store(true, Ordering::SeqCst);
    instance()
}

/// The lock that keeps all copies of this library from making an instance each.
#[doc(hidden)]
pub use super::library_copies::lock_word;

/// The plugin, for another copy of this library in the process: null where this one has none, or has joined
/// another's.
#[doc(hidden)]
pub fn shared() -> *mut memprof_plugin_t {
    let plugin = || {
        let mut plugins = share_instance()?.router.plugins();
        plugins.find_map(|(_, plugin)| plugin.as_ref().ok()?.created_plugin())
    };
    catch_panic(ptr::null_mut(), || plugin().unwrap_or(ptr::null_mut()))
}

/// Whether the instance has to stay.
#[cfg(feature = "adapter-attached")]
pub(super) fn is_shared() -> bool {
    SHARED.load(Ordering::SeqCst)
}

/// Destroys the instance, unless it is shared.
///
/// # Safety
/// The caller has made it and nobody else uses it, unless it is shared.
#[cfg(feature = "adapter-attached")]
pub(super) unsafe fn remove() {
    let removed = INSTANCE.swap(ptr::null_mut(), Ordering::SeqCst);
    if !removed.is_null() && !is_shared() {
        // SAFETY: leaked by `settle` or `make`; nobody uses it, as the caller promises.
        drop(unsafe { Box::from_raw(removed) });
    }
}

/// Makes the instance. None, where the program has made one meanwhile.
///
/// # Errors
/// Why the plugin cannot be made; nothing is changed then.
#[cfg(feature = "adapter-attached")]
pub(super) fn make(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: Settings,
    has_keys: bool,
) -> Result<Option<&'static AdapterInstance>, Failure> {
    let _sole = library_copies::lock_all_copies(entry);
    if instance().is_some() {
        return Ok(None);
    }
    let mut made = Box::new(AdapterInstance::new(entry, adapter, Ok(settings)));
    made.has_keys = has_keys;
    match made.failure.take() {
        Some(failure) => Err(failure),
        None => {
            let made = Box::leak(made);
            INSTANCE.store(ptr::from_mut(made), Ordering::SeqCst);
            Ok(Some(made))
        }
    }
}

/// Makes the instance, or joins the one that another adapter made, and opens the control socket. What
/// is wrong is logged in one line, and answered to every message.
pub(super) fn start_instance(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: Result<Settings, Failure>,
) -> &'static AdapterInstance {
    let control = match &settings {
        Ok(Settings { control, .. }) => control.clone(),
        Err(_) => None,
    };
    let (instance, is_new) = get_or_create(entry, adapter, || settings);
    if !is_new || instance.is_of_other_copy() {
        let message = format!("{} is loaded already: its first config stays", instance.id);
        adapter.log.line(Level::Warn, &message);
    }
    // The program goes on without.
    let _logged = instance.open_control(adapter, control.as_ref());
    instance
}

/// The instance, and whether it was made for this call.
pub(super) fn get_or_create(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) -> (&'static AdapterInstance, bool) {
    if let Some(instance) = share_instance() {
        return (instance, false);
    }
    let _sole = library_copies::lock_all_copies(entry);
    // Another thread may have made it meanwhile.
    if let Some(instance) = share_instance() {
        return (instance, false);
    }
    // Made before it is put there: a child that is forked meanwhile must not wait for a
    // thread that it does not have.
    let made = Box::leak(Box::new(AdapterInstance::new(entry, adapter, settings())));
    INSTANCE.store(ptr::from_mut(made), Ordering::SeqCst);
    (made, true)
}

impl AdapterInstance {
    fn new(
        entry: &'static memprof_plugin_entry_t,
        adapter: &Adapter,
        settings: Result<Settings, Failure>,
    ) -> Self {
        // SAFETY: the entry's texts live as long as it does.
        let id = unsafe { copy_text(entry.id) };
        let program = HostProgram {
            name: Box::leak(program_name().into_boxed_str()),
            version: "",
            log: adapter.log,
            jemalloc: None,
        };
        let create = || match library_copies::instance_of_other_copy(entry) {
            Some(joined) => Ok(joined),
            None => {
                let config = settings?.config_text();
                // SAFETY: the entry of the library that this code is part of; it is never unloaded
                // (`-z nodelete`).
                unsafe { Instance::create(entry, program, &config) }
            }
        };
        let plugin = panic::catch_unwind(AssertUnwindSafe(create)).unwrap_or_else(|payload| {
            std::mem::forget(payload);
            Err(Failure::new(MEMPROF_PANIC, "loading the plugin panicked"))
        });
        if let Err(failure) = &plugin {
            adapter.log.line(Level::Error, &failure.to_string());
        }
        let entry = plugin.as_ref().map_or(entry, Instance::entry);
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

    /// Whether another copy of this library has the plugin.
    pub(super) fn is_of_other_copy(&self) -> bool {
        let mut plugins = self.router.plugins();
        plugins.any(|(_, plugin)| matches!(plugin, Ok(joined) if joined.created_plugin().is_none()))
    }

    /// Tells the plugin that the calling thread is one of ours.
    pub(super) fn enter_thread(&self) {
        self.router.enter_thread();
    }

    /// The plugin's name.
    pub(super) fn id(&self) -> &str {
        &self.id
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
