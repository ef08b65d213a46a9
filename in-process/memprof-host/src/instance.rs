//! A created plugin. All calls into plugins are in this module.
#![expect(unsafe_code, reason = "the ABI boundary")]

mod callbacks;
mod claim;
mod entry;
mod reply_collector;
mod unwind_report;

use std::mem;

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{
    MEMPROF_ABI_VERSION, MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_OK, memprof_host_t,
    memprof_plugin_entry_t, memprof_plugin_t, memprof_reply_t, memprof_status_t, memprof_str_t,
};

use crate::config_source::ConfigSource;
use crate::program::HostProgram;
use crate::protocol::{HELP, PluginInfo};
use crate::reply::Reply;
use callbacks::{HostContext, get_extension, log_enabled, log_line};
use claim::InstanceClaim;
#[cfg(any(feature = "adapters", all(feature = "loader", feature = "control")))]
pub(crate) use claim::duplicate_id_error;
pub(crate) use entry::check_entry;
#[cfg(any(feature = "adapters", feature = "loader"))]
pub(crate) use entry::copy_text;
#[cfg(feature = "loader")]
pub(crate) use entry::name_warnings;
use entry::{EnterThread, find_enter_thread, incomplete_entry_error};
use reply_collector::{ReplyCollector, begin_body, write_body};
use unwind_report::UnwindReport;

/// `create` of an entry.
type Create = unsafe extern "C" fn(
    *const memprof_host_t,
    memprof_str_t,
    *mut *mut memprof_plugin_t,
) -> memprof_status_t;
/// [`Create`], called so that an exception of the plugin's is reported.
type CreateUnwind = unsafe extern "C-unwind" fn(
    *const memprof_host_t,
    memprof_str_t,
    *mut *mut memprof_plugin_t,
) -> memprof_status_t;
/// `handle_message` of an entry.
type Handle = unsafe extern "C" fn(
    *mut memprof_plugin_t,
    memprof_str_t,
    memprof_str_t,
    *const memprof_reply_t,
) -> memprof_status_t;
/// [`Handle`], called so that an exception of the plugin's is reported.
type HandleUnwind = unsafe extern "C-unwind" fn(
    *mut memprof_plugin_t,
    memprof_str_t,
    memprof_str_t,
    *const memprof_reply_t,
) -> memprof_status_t;

/// `destroy` of an entry.
type Destroy = unsafe extern "C" fn(*mut memprof_plugin_t);
/// [`Destroy`], called so that an exception of the plugin's is reported.
type DestroyUnwind = unsafe extern "C-unwind" fn(*mut memprof_plugin_t);

/// A created plugin. Dropping it destroys the plugin, but never unloads its library.
#[derive(Debug)]
pub struct Instance {
    info: PluginInfo,
    entry: &'static memprof_plugin_entry_t,
    plugin: *mut memprof_plugin_t,
    owner: PluginOwner,
    enter_thread: Option<EnterThread>,
    /// Released after the plugin is destroyed.
    _claim: Option<InstanceClaim>,
}

/// Copy of this library to which a plugin belongs: only that copy destroys it.
#[derive(Debug)]
enum PluginOwner {
    /// This copy, with the context of the plugin's callbacks.
    ThisLibrary(&'static HostContext),
    /// Another copy in the process, which never destroys it.
    #[cfg(feature = "adapters")]
    OtherCopy,
}

// SAFETY: memprof.h: `handle_message` is thread-safe; `destroy` runs when no call can, because drop has exclusive
// access.
unsafe impl Send for Instance {}
// SAFETY: memprof.h: `handle_message` is thread-safe.
unsafe impl Sync for Instance {}

impl Instance {
    /// Checks an entry's version and size and that its library has no instance yet, then creates its plugin.
    ///
    /// # Safety
    /// `entry` is null or a plugin's `memprof_plugin_entry`, and its library stays loaded until the process ends.
    ///
    /// # Errors
    /// Another ABI, an incomplete entry, another instance in the process, or the reason that the plugin logged.
    pub unsafe fn create(
        entry: *const memprof_plugin_entry_t,
        program: HostProgram,
        config: &str,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller promises null or an entry of a library that stays loaded.
        unsafe { Self::create_with_source(entry, program, config, &ConfigSource::Unknown) }
    }

    /// Checks an entry's version and size and that its library has no instance yet, then creates its plugin. `source`
    /// is the source of `config`, which an error about the config names. Fails for another ABI, an incomplete entry or
    /// another instance in the process, or with the reason that the plugin logged.
    ///
    /// # Safety
    /// `entry` is null or a plugin's `memprof_plugin_entry`, and its library stays loaded until the process ends.
    pub(crate) unsafe fn create_with_source(
        entry: *const memprof_plugin_entry_t,
        program: HostProgram,
        config: &str,
        source: &ConfigSource,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller promises null or an entry of a library that stays loaded.
        let info = unsafe { check_entry(entry) }?;
        let claim = InstanceClaim::acquire(entry, &info.id)?;
        // SAFETY: `check_entry` found a whole entry; the caller promises that its library stays loaded.
        let entry: &'static memprof_plugin_entry_t = unsafe { &*entry };
        let context: &'static HostContext =
            Box::leak(Box::new(HostContext::new(program, info.id.clone())));
        let host: &'static memprof_host_t = Box::leak(Box::new(memprof_host_t {
            struct_size: size_of::<memprof_host_t>(),
            abi_version: MEMPROF_ABI_VERSION,
            reserved: 0,
            ctx: std::ptr::from_ref(context).cast_mut().cast(),
            name: memprof_str_t::new(program.name),
            version: memprof_str_t::new(program.version),
            log_enabled: Some(log_enabled),
            log: Some(log_line),
            get_extension: Some(get_extension),
        }));
        let mut plugin = std::ptr::null_mut();
        let create = entry
            .create
            .ok_or_else(|| incomplete_entry_error(&info.id))?;
        let report = UnwindReport::new(&info.id, "create");
        // SAFETY: it is the same function; the calling conventions differ only in the effect of an exception.
        let create = unsafe { mem::transmute::<Create, CreateUnwind>(create) };
        // SAFETY: memprof.h, `create`: the host struct is leaked, so it is valid until `destroy`.
        let status = unsafe { create(host, memprof_str_t::new(config), &raw mut plugin) };
        report.cancel();
        let error = context.end_creation();
        if status != MEMPROF_OK {
            let reason = error.map_or_else(
                || format!("it gave no reason (status {status})"),
                |error| error.reason,
            );
            let start = format!("plugin {} could not be created: ", info.id);
            // The config is the only argument of `create` that a person can correct.
            return Err(match status {
                MEMPROF_INVALID_ARGUMENT => {
                    Failure::new(status, start + &source.locate_error(config, &reason))
                        .remedy(source.remedy())
                }
                _ => Failure::new(status, start + &reason),
            });
        }
        if let Some(error) = error {
            context.write_error(&error);
        }
        Ok(Self {
            info,
            entry,
            plugin,
            owner: PluginOwner::ThisLibrary(context),
            _claim: Some(claim),
            // SAFETY: `plugin` was created by this entry above.
            enter_thread: unsafe { find_enter_thread(entry, plugin) },
        })
    }

    /// Wraps a plugin that another copy of this library created in the process. Fails if the entry is incomplete or of
    /// another ABI.
    ///
    /// # Safety
    /// `entry` is null or a plugin's `memprof_plugin_entry`, and its library stays loaded until the process ends.
    /// `plugin` is an instance that `entry` created, and is never destroyed.
    #[cfg(feature = "adapters")]
    pub(crate) unsafe fn from_other_copy(
        entry: *const memprof_plugin_entry_t,
        plugin: *mut memprof_plugin_t,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller promises null or an entry of a library that stays loaded.
        let info = unsafe { check_entry(entry) }?;
        // SAFETY: `check_entry` found a whole entry; the caller promises that its library stays loaded.
        let entry: &'static memprof_plugin_entry_t = unsafe { &*entry };
        Ok(Self {
            info,
            entry,
            plugin,
            owner: PluginOwner::OtherCopy,
            _claim: None,
            // SAFETY: the caller promises an instance of the entry that is never destroyed.
            enter_thread: unsafe { find_enter_thread(entry, plugin) },
        })
    }

    /// Returns the plugin, which another copy of this library can pass to its [`Instance::from_other_copy`]. `None` if
    /// this copy did not create the plugin.
    #[cfg(feature = "adapters")]
    pub(crate) fn created_plugin(&self) -> Option<*mut memprof_plugin_t> {
        matches!(self.owner, PluginOwner::ThisLibrary(_)).then_some(self.plugin)
    }

    /// Returns the entry of the plugin's library.
    #[cfg(feature = "adapters")]
    pub(crate) fn entry(&self) -> &'static memprof_plugin_entry_t {
        self.entry
    }

    /// Reports to the plugin that the calling thread is memprof's, not the program's, so that a profiler does not
    /// sample it. Does nothing if the plugin has no function for that. Allocates nothing, unless the plugin does.
    #[cfg_attr(
        not(feature = "control"),
        expect(
            dead_code,
            reason = "memprof's threads serve the control socket or an adapter"
        )
    )]
    pub(crate) fn report_memprof_thread(&self) {
        if let Some(enter) = self.enter_thread {
            // SAFETY: memprof.h, `memprof_threads_t`: any thread, until `destroy`.
            unsafe { enter(self.plugin) }
        }
    }

    /// Returns the name, version and messages of the plugin.
    pub fn info(&self) -> &PluginInfo {
        &self.info
    }

    /// Sends a message and waits for its reply. If the plugin refuses the message, the reply has a negative status.
    /// The message `help` of a plugin that has none lists the plugin's messages.
    pub fn message(&self, name: &str, args: &str) -> Reply {
        if name == HELP && !self.info.messages.iter().any(|message| message == HELP) {
            return self.info.help_reply();
        }
        let mut collected = ReplyCollector::default();
        let reply = memprof_reply_t {
            struct_size: size_of::<memprof_reply_t>(),
            reserved: 0,
            ctx: (&raw mut collected).cast(),
            begin: Some(begin_body),
            write: Some(write_body),
        };
        let status_code = match self.entry.handle_message {
            Some(handle) => {
                let report = UnwindReport::new(&self.info.id, name);
                // SAFETY: it is the same function; the calling conventions differ only in the effect of an exception.
                let handle = unsafe { mem::transmute::<Handle, HandleUnwind>(handle) };
                // SAFETY: memprof.h, `handle_message`: any thread; texts and reply outlive the call.
                let status = unsafe {
                    handle(
                        self.plugin,
                        memprof_str_t::new(name),
                        memprof_str_t::new(args),
                        &reply,
                    )
                };
                report.cancel();
                status
            }
            None => MEMPROF_INTERNAL,
        };
        collected.into_reply(status_code, &self.info.id, name)
    }
}

impl Drop for Instance {
    /// Destroys the plugin, unless another copy of this library has created it.
    fn drop(&mut self) {
        match &self.owner {
            PluginOwner::ThisLibrary(context) => {
                if let Some(destroy) = self.entry.destroy {
                    let report = UnwindReport::new(&self.info.id, "destroy");
                    // SAFETY: it is the same function; the calling conventions differ only in the effect of an
                    // exception.
                    let destroy = unsafe { mem::transmute::<Destroy, DestroyUnwind>(destroy) };
                    // SAFETY: memprof.h, `destroy`: once, and `&mut self` proves that no call runs.
                    unsafe { destroy(self.plugin) };
                    report.cancel();
                }
                log::debug!("plugin {} of {context:?} is destroyed", self.info.id);
            }
            #[cfg(feature = "adapters")]
            PluginOwner::OtherCopy => {}
        }
    }
}
