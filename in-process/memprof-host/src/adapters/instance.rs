//! The plugin's one instance in a program that was not built for memprof.
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
use crate::instance::{Instance, check_entry, copy_text};
use crate::program::HostProgram;
use crate::protocol::PluginInfo;
use crate::router::Router;

/// The plugin in this process, which all adapters share.
#[derive(Debug)]
pub(super) struct AdapterInstance {
    pub(super) entry: &'static memprof_plugin_entry_t,
    pub(super) id: String,
    program: HostProgram,
    pub(super) router: Arc<Router>,
    /// Reason for which the plugin could not be created.
    failure: Option<Failure>,
    /// Config with which it was created.
    settings: Result<Settings, Failure>,
    /// Whether it was created with a config of the plugin.
    has_config: bool,
}

/// Properties of the adapter through which a program loads the plugin.
#[derive(Debug)]
pub(super) struct Adapter {
    /// Log of the program.
    pub(super) log: &'static ProgramLog,
    /// Control socket, if the config does not mention it.
    pub(super) control: Control,
}

impl Adapter {
    /// Creates an adapter of a program that calls the plugin on its own threads and has a bus for messages. It has no
    /// control socket unless the config requests one.
    pub(super) const fn without_socket(log: &'static ProgramLog) -> Self {
        Self {
            log,
            control: Control::Off,
        }
    }
}

/// The instance: null, or leaked, because threads may use it until the process ends. Only [`remove_instance`] frees it.
static INSTANCE: AtomicPtr<AdapterInstance> = AtomicPtr::new(ptr::null_mut());

/// Whether users of the instance are unknown, so that it must never be freed.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Returns the plugin's instance in this process. `None` before an adapter has created it, or after it was removed.
pub(super) fn instance() -> Option<&'static AdapterInstance> {
    // SAFETY: null, or leaked when it was created; the caller of `remove_instance` promises that it is unused.
    unsafe { INSTANCE.load(Ordering::SeqCst).as_ref() }
}

/// Marks the plugin's instance as shared, so that it is never freed, and returns it. `None` if there is no instance;
/// one that is created later is shared, too.
fn share_instance() -> Option<&'static AdapterInstance> {
    // The flag must be set before the instance is read: `remove_instance` uses the reverse order.
    IS_SHARED.store(true, Ordering::SeqCst);
    instance()
}

/// The lock that keeps all copies of this library from making an instance each.
#[doc(hidden)]
pub use super::library_copies::lock_address;

/// Returns the plugin for another copy of this library in the process, and marks the instance as shared, so that it is
/// never freed. Null if this copy has no plugin, or uses another copy's.
#[doc(hidden)]
pub fn plugin_for_other_copy() -> *mut memprof_plugin_t {
    let plugin = || {
        let mut plugins = share_instance()?.router.plugins();
        plugins.find_map(|(_, plugin)| plugin.as_ref().ok()?.created_plugin())
    };
    catch_panic(ptr::null_mut(), || plugin().unwrap_or(ptr::null_mut()))
}

/// Returns whether the instance must never be freed, because not all of its users are known.
#[cfg(feature = "adapter-attached")]
pub(super) fn is_instance_shared() -> bool {
    IS_SHARED.load(Ordering::SeqCst)
}

/// Removes the plugin's instance from this process, and frees it unless it is shared.
///
/// # Safety
/// The caller has created the instance and no other code uses it, unless it is shared.
#[cfg(feature = "adapter-attached")]
pub(super) unsafe fn remove_instance() {
    let removed = INSTANCE.swap(ptr::null_mut(), Ordering::SeqCst);
    if !removed.is_null() && !is_instance_shared() {
        // SAFETY: leaked when it was created; the caller promises that no other code uses it.
        drop(unsafe { Box::from_raw(removed) });
    }
}

/// Creates the plugin's instance, for a caller that may later call [`remove_instance`]. `has_config` says whether the
/// attachment configures the plugin. Blocks while another copy of the library creates its instance. `None` if another
/// thread has created an instance since the caller checked. Fails with the reason if the plugin cannot be created; no
/// instance is stored then.
#[cfg(feature = "adapter-attached")]
pub(super) fn create_removable_instance(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: Settings,
    has_config: bool,
) -> Result<Option<&'static AdapterInstance>, Failure> {
    let _guard = library_copies::lock_across_copies(entry);
    if instance().is_some() {
        return Ok(None);
    }
    let mut new = Box::new(AdapterInstance::create(entry, adapter, Ok(settings)));
    new.has_config = has_config;
    match new.failure.take() {
        Some(failure) => Err(failure),
        None => {
            // Leaked, because other threads use it until `remove_instance`.
            let new = Box::leak(new);
            INSTANCE.store(ptr::from_mut(new), Ordering::SeqCst);
            Ok(Some(new))
        }
    }
}

/// Creates the plugin's instance, or uses the existing one of another adapter, and opens the control socket. An
/// existing instance keeps its config; a warning is logged then. But an instance whose plugin could not be created is
/// replaced, because the config may have been corrected. A failure is logged in one line, and is the reply to every
/// message.
pub(super) fn start_instance(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: Result<Settings, Failure>,
) -> &'static AdapterInstance {
    let control = match &settings {
        Ok(Settings { control, .. }) => control.clone(),
        Err(_) => None,
    };
    let (instance, is_new) = match instance() {
        Some(failed) if failed.failure.is_some() => {
            (replace_failed_instance(entry, adapter, settings), true)
        }
        _ => get_or_create_instance(entry, adapter, || settings),
    };
    if !is_new || instance.is_from_other_copy() {
        let message = instance.already_loaded_warning(entry);
        adapter.log.write_line(Level::Warn, &message);
    }
    // An error was logged; the program runs without the socket.
    let _result = instance.open_control_socket(adapter, control.as_ref());
    instance
}

/// Returns the plugin's instance, and whether this call has created it. The instance is never freed from now on. If the
/// plugin cannot be created, the instance replies to every message with the reason. `settings` is called only for a new
/// instance.
pub(super) fn get_or_create_instance(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) -> (&'static AdapterInstance, bool) {
    if let Some(instance) = share_instance() {
        return (instance, false);
    }
    let _guard = library_copies::lock_across_copies(entry);
    // Another thread may have created it in the meantime.
    if let Some(instance) = share_instance() {
        return (instance, false);
    }
    // The instance is stored only when it is complete: a child that is forked meanwhile must not wait for a thread that
    // exists only in its parent.
    let new = Box::leak(Box::new(AdapterInstance::create(
        entry,
        adapter,
        settings(),
    )));
    INSTANCE.store(ptr::from_mut(new), Ordering::SeqCst);
    (new, true)
}

/// Replaces an instance whose plugin could not be created, if the config has changed since, and opens the control
/// socket of the new instance. Does nothing if the plugin was created. `read_again` returns the config as it is now;
/// `None` if it cannot change. Returns the current instance.
pub(super) fn recreate_if_config_changed(
    instance: &'static AdapterInstance,
    adapter: &Adapter,
    read_again: impl FnOnce() -> Option<Result<Settings, Failure>>,
) -> &'static AdapterInstance {
    let settings = instance.failure.as_ref().and_then(|_| read_again());
    let Some(settings) = settings.filter(|settings| instance.settings != *settings) else {
        return instance;
    };
    let control = settings
        .as_ref()
        .ok()
        .and_then(|settings| settings.control.clone());
    let instance = replace_failed_instance(instance.entry, adapter, settings);
    // An error was logged; the program runs without the socket.
    let _result = instance.open_control_socket(adapter, control.as_ref());
    instance
}

/// Creates an instance in place of one whose plugin could not be created. Closes the control socket of the old
/// instance, which is leaked, because threads may use it. If another thread has already replaced the failed instance,
/// creates none and returns the current one.
fn replace_failed_instance(
    entry: &'static memprof_plugin_entry_t,
    adapter: &Adapter,
    settings: Result<Settings, Failure>,
) -> &'static AdapterInstance {
    // False in a forked child, where the socket is the parent's.
    if control::is_socket_open() {
        control::close_socket();
    }
    let _guard = library_copies::lock_across_copies(entry);
    // Another thread may have replaced it in the meantime.
    match share_instance() {
        Some(current) if current.failure.is_none() => current,
        _ => {
            let new = Box::leak(Box::new(AdapterInstance::create(entry, adapter, settings)));
            INSTANCE.store(ptr::from_mut(new), Ordering::SeqCst);
            new
        }
    }
}

impl AdapterInstance {
    /// Creates the plugin, or joins the plugin of another copy of the library. Never fails, because an adapter must not
    /// end its program: a failure is logged, and is then the reply to every message.
    fn create(
        entry: &'static memprof_plugin_entry_t,
        adapter: &Adapter,
        settings: Result<Settings, Failure>,
    ) -> Self {
        let id = plugin_id(entry);
        // Plugins borrow the name until the process ends, so it is leaked.
        let program = HostProgram {
            name: Box::leak(program_name().into_boxed_str()),
            version: "",
            log: adapter.log,
            jemalloc: None,
        };
        let create = || match library_copies::join_other_copy(entry) {
            Some(joined) => joined,
            None => {
                let settings = settings.as_ref().map_err(Clone::clone)?;
                let config = settings.config_text();
                // SAFETY: the entry is of the library that contains this code, which is never unloaded (`-z nodelete`).
                unsafe { Instance::create_with_source(entry, program, &config, &settings.source) }
            }
        };
        let plugin = panic::catch_unwind(AssertUnwindSafe(create)).unwrap_or_else(|payload| {
            // Dropping the payload would run foreign code, which may panic again.
            std::mem::forget(payload);
            Err(Failure::new(MEMPROF_PANIC, "loading the plugin panicked"))
        });
        if let Err(failure) = &plugin {
            adapter.log.write_line(Level::Error, &failure.to_string());
        }
        // A joined plugin is called through the entry of its own copy.
        let entry = plugin.as_ref().map_or(entry, Instance::entry);
        let failure = plugin.as_ref().err().cloned();
        // SAFETY: the entry is of a library that stays loaded until the process ends.
        let info = unsafe { check_entry(entry) };
        // An entry that is refused has no description but its id.
        let info = info.unwrap_or_else(|_| PluginInfo {
            id: id.clone(),
            ..PluginInfo::default()
        });
        let mut router = Router::default();
        router.add(info, plugin);
        Self {
            entry,
            id,
            program,
            router: Arc::new(router),
            failure,
            settings,
            // `create_removable_instance` sets it to false for an attachment without a config.
            has_config: true,
        }
    }

    /// Returns the reason for which the plugin could not be created. `None` if it was created.
    pub(super) fn creation_failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Returns the config with which the instance was created, or the reason for which that is invalid.
    pub(super) fn settings(&self) -> &Result<Settings, Failure> {
        &self.settings
    }

    /// Returns whether the instance was created with a config of the plugin. False only for an attachment that passed
    /// no config.
    #[cfg(feature = "adapter-attached")]
    pub(super) fn has_config(&self) -> bool {
        self.has_config
    }

    /// Opens the control socket, once in a process, where `configured` says. If `configured` is `None`, the adapter's
    /// default applies. Logs an error and returns it.
    pub(super) fn open_control_socket(
        &self,
        adapter: &Adapter,
        configured: Option<&Control>,
    ) -> Result<(), Failure> {
        let control = configured.unwrap_or(&adapter.control);
        control::open_socket(self.program, Arc::clone(&self.router), adapter.log, control)
    }

    /// Formats the warning that the plugin was loaded before. If another copy of the library has created the plugin,
    /// the text says that the library of `own` is not used; otherwise, that the new config is not used.
    fn already_loaded_warning(&self, own: &'static memprof_plugin_entry_t) -> String {
        let id = &self.id;
        if !self.is_from_other_copy() {
            return format!(
                "{id} is loaded already: its first config stays until the program is restarted"
            );
        }
        let [file, loaded] = library_copies::library_paths(own, self.entry);
        format!(
            "{file} is left out: {loaded} is loaded already and answers the messages of {id}, and its config stays until the \
             program is restarted"
        )
    }

    /// Returns whether another copy of this library has created the plugin.
    pub(super) fn is_from_other_copy(&self) -> bool {
        let mut plugins = self.router.plugins();
        plugins.any(|(_, plugin)| matches!(plugin, Ok(joined) if joined.created_plugin().is_none()))
    }

    /// Reports to the plugin that the calling thread is memprof's, so that a profiler does not sample it.
    pub(super) fn report_memprof_thread(&self) {
        self.router.report_memprof_thread();
    }

    /// Returns the id of the plugin, such as `memory_profile`, even if the plugin could not be created.
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

/// Returns the plugin's id from the entry of a library, such as `memory_profile`. The plugin need not have been
/// created.
pub(super) fn plugin_id(entry: &'static memprof_plugin_entry_t) -> String {
    // SAFETY: memprof.h: the entry's texts live as long as the entry.
    unsafe { copy_text(entry.id) }
}

/// Returns the file name by which the program was started: that of a link or script, if it was started by one;
/// `program` if the kernel reports no name.
fn program_name() -> String {
    // SAFETY: getauxval(3) reads a constant of the process.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    if name.is_null() {
        return "program".to_owned();
    }
    // SAFETY: getauxval(3), AT_EXECFN: the kernel stores a NUL-terminated text there.
    let path = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}
