//! One created plugin: the only place that calls into a plugin.
#![expect(unsafe_code, reason = "the ABI boundary")]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use memprof_plugin_abi::raw::{
    MEMPROF_ABI_MAJOR, MEMPROF_ABI_MISMATCH, MEMPROF_ABI_VERSION, MEMPROF_EXTENSION_JEMALLOC,
    MEMPROF_EXTENSION_REPLY_FD, MEMPROF_EXTENSION_THREADS, MEMPROF_INTERNAL,
    MEMPROF_INVALID_ARGUMENT, MEMPROF_IO, MEMPROF_OK, memprof_host_t, memprof_jemalloc_t,
    memprof_log_level_t, memprof_plugin_entry_t, memprof_plugin_t, memprof_reply_fd_t,
    memprof_reply_t, memprof_str_t, memprof_threads_t,
};
use memprof_plugin_abi::{Failure, Status, TEXT};

use crate::body::Body;
use crate::program::Program;
use crate::protocol::PluginInfo;
use crate::reply::Reply;

/// A plugin that was created. It is never unloaded, and destroyed when dropped.
#[derive(Debug)]
pub struct Instance {
    info: PluginInfo,
    entry: &'static memprof_plugin_entry_t,
    plugin: *mut memprof_plugin_t,
    owner: Owner,
    enter_thread: Option<EnterThread>,
}

/// Who destroys a plugin.
#[derive(Debug)]
enum Owner {
    /// Whoever created it, with what the callbacks find.
    Us(&'static Context),
    /// Another copy of this library in the process, never.
    #[cfg(feature = "adapters")]
    AnotherCopy,
}

/// `enter` of [`memprof_threads_t`].
type EnterThread = unsafe extern "C" fn(*mut memprof_plugin_t);

// SAFETY: memprof.h: `handle_message` is thread-safe, and `destroy` runs when no call can: it
// takes the instance by value.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

/// What the host's callbacks find behind `ctx`.
struct Context {
    program: Program,
    jemalloc: Option<memprof_jemalloc_t>,
    /// While `create` runs: the errors that the plugin logged. The last one is the reason if it
    /// fails; if it succeeds, they are lines like others.
    errors: Mutex<Vec<String>>,
    in_creation: AtomicBool,
}

// SAFETY: the jemalloc functions are thread-safe (jemalloc(3)), the logger is `Sync`, and the
// rest is guarded.
unsafe impl Sync for Context {}

impl Context {
    fn log(&self, level: log::Level, target: &str, message: &str) {
        self.program.log.log(
            &log::Record::builder()
                .level(level)
                .target(target)
                .args(format_args!("{message}"))
                .build(),
        );
    }

    fn take_errors(&self) -> Vec<String> {
        mem::take(&mut self.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

impl Instance {
    /// Checks an entry's version and size, then creates its plugin.
    ///
    /// # Safety
    /// `entry` is null or a plugin's `memprof_plugin_entry`, and its library stays loaded as
    /// long as the process.
    ///
    /// # Errors
    /// Another ABI, an incomplete entry, or the reason that the plugin logged.
    pub unsafe fn create(
        entry: *const memprof_plugin_entry_t,
        program: Program,
        config: &str,
    ) -> Result<Self, Failure> {
        // SAFETY: promised by the caller.
        let info = unsafe { check_entry(entry) }?;
        // SAFETY: `check_entry` found it whole, and it lives as long as the process.
        let entry: &'static memprof_plugin_entry_t = unsafe { &*entry };
        let context: &'static Context = Box::leak(Box::new(Context {
            program,
            jemalloc: program.jemalloc,
            errors: Mutex::default(),
            in_creation: true.into(),
        }));
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
        let create = entry.create.ok_or_else(|| incomplete(&info.id))?;
        // SAFETY: memprof.h, `create`: the host struct is leaked, so it is valid until `destroy`.
        let status = unsafe { create(host, memprof_str_t::new(config), &raw mut plugin) };
        context.in_creation.store(false, Ordering::Release);
        let mut errors = context.take_errors();
        if status != MEMPROF_OK {
            let reason = errors
                .pop()
                .unwrap_or_else(|| format!("it gave no reason (status {status})"));
            let message = format!("plugin {} could not be created: {reason}", info.id);
            return Err(Failure::new(status, message));
        }
        for error in errors {
            context.log(log::Level::Error, &info.id, &error);
        }
        Ok(Self {
            info,
            entry,
            plugin,
            owner: Owner::Us(context),
            // SAFETY: `create` made it just now.
            enter_thread: unsafe { find_enter_thread(entry, plugin) },
        })
    }

    /// Joins a plugin that another copy of this library has created in the process.
    ///
    /// # Safety
    /// `entry` is as for [`Instance::create`], and `plugin` one of its instances, which is never destroyed.
    ///
    /// # Errors
    /// Another ABI, or an incomplete entry.
    #[cfg(feature = "adapters")]
    pub(crate) unsafe fn join(
        entry: *const memprof_plugin_entry_t,
        plugin: *mut memprof_plugin_t,
    ) -> Result<Self, Failure> {
        // SAFETY: promised by the caller.
        let info = unsafe { check_entry(entry) }?;
        // SAFETY: `check_entry` found it whole, and it lives as long as the process.
        let entry: &'static memprof_plugin_entry_t = unsafe { &*entry };
        Ok(Self {
            info,
            entry,
            plugin,
            owner: Owner::AnotherCopy,
            // SAFETY: promised by the caller.
            enter_thread: unsafe { find_enter_thread(entry, plugin) },
        })
    }

    /// What [`Instance::join`] takes, of a plugin that was created here.
    #[cfg(feature = "adapters")]
    pub(crate) fn created(&self) -> Option<*mut memprof_plugin_t> {
        matches!(self.owner, Owner::Us(_)).then_some(self.plugin)
    }

    /// The entry of the library that the plugin is in.
    #[cfg(feature = "adapters")]
    pub(crate) fn entry(&self) -> &'static memprof_plugin_entry_t {
        self.entry
    }

    /// Tells the plugin that the calling thread is one of ours, which works for plugins only.
    /// Allocates nothing, unless the plugin does.
    #[cfg_attr(
        not(feature = "control"),
        expect(
            dead_code,
            reason = "threads of ours serve the control socket or an adapter"
        )
    )]
    pub(crate) fn enter_thread(&self) {
        if let Some(enter) = self.enter_thread {
            // SAFETY: memprof.h, `memprof_threads_t`: any thread, until `destroy`.
            unsafe { enter(self.plugin) }
        }
    }

    /// Its name, version and messages.
    pub fn info(&self) -> &PluginInfo {
        &self.info
    }

    /// Sends one message and collects the reply.
    pub fn message(&self, name: &str, args: &str) -> Reply {
        let mut collected = Collected {
            content_type: None,
            body: Body::default(),
        };
        let reply = memprof_reply_t {
            struct_size: size_of::<memprof_reply_t>(),
            reserved: 0,
            ctx: (&raw mut collected).cast(),
            begin: Some(begin_body),
            write: Some(write_body),
        };
        let status_code = match self.entry.handle_message {
            // SAFETY: memprof.h, `handle_message`: any thread; texts and reply outlive the call.
            Some(handle) => unsafe {
                handle(
                    self.plugin,
                    memprof_str_t::new(name),
                    memprof_str_t::new(args),
                    &reply,
                )
            },
            None => MEMPROF_INTERNAL,
        };
        Reply {
            status_code,
            content_type: collected.content_type.map_or(TEXT.into(), String::into),
            body: collected.body,
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        match self.owner {
            Owner::Us(context) => {
                if let Some(destroy) = self.entry.destroy {
                    // SAFETY: memprof.h, `destroy`: once, and `&mut self` proves that no call runs.
                    unsafe { destroy(self.plugin) };
                }
                log::debug!("plugin {} of {context:?} is destroyed", self.info.id);
            }
            #[cfg(feature = "adapters")]
            Owner::AnotherCopy => {}
        }
    }
}

/// # Safety
/// `plugin` is a created instance of the entry's.
unsafe fn find_enter_thread(
    entry: &memprof_plugin_entry_t,
    plugin: *mut memprof_plugin_t,
) -> Option<EnterThread> {
    let get = entry.get_extension?;
    // SAFETY: memprof.h, `get_extension`: the text is borrowed for the call.
    let found = unsafe { get(plugin, memprof_str_t::new(MEMPROF_EXTENSION_THREADS)) };
    // SAFETY: the extension of that id is this struct or null, and lives as long as the process.
    let found = unsafe { found.cast::<memprof_threads_t>().as_ref() }?;
    let is_whole = found.struct_size >= size_of::<memprof_threads_t>();
    found.enter.filter(|_| is_whole)
}

/// How every version of `memprof_plugin_entry_t` starts.
#[repr(C)]
struct Head {
    size: usize,
    version: u32,
}

/// # Safety
/// As for [`Instance::create`].
pub(crate) unsafe fn check_entry(
    entry: *const memprof_plugin_entry_t,
) -> Result<PluginInfo, Failure> {
    let mismatch = |message: String| {
        Failure::new(MEMPROF_ABI_MISMATCH, message)
            .remedy("use a plugin and a host of the same major version")
    };
    if entry.is_null() {
        return Err(mismatch("memprof_plugin_entry is null".to_owned()));
    }
    // SAFETY: every version of the struct starts with these two fields.
    let Head { size, version } = unsafe { entry.cast::<Head>().read() };
    if version >> 16 != MEMPROF_ABI_MAJOR {
        return Err(mismatch(format!(
            "the plugin was built for ABI {}.{}, this host speaks {MEMPROF_ABI_MAJOR}.x",
            version >> 16,
            version & 0xffff
        )));
    }
    let needed = size_of::<memprof_plugin_entry_t>();
    if size < needed {
        return Err(mismatch(format!(
            "the plugin's memprof_plugin_entry has {size} bytes, ABI {MEMPROF_ABI_MAJOR} needs {needed}"
        )));
    }
    // SAFETY: of this major version and whole; it lives as long as the process.
    let entry = unsafe { &*entry };
    // SAFETY: the entry's texts live as long as it does.
    let id = unsafe { text(entry.id) };
    if id.is_empty() || entry.create.is_none() || entry.handle_message.is_none() {
        return Err(incomplete(&id));
    }
    // SAFETY: as is its version.
    let version = unsafe { text(entry.version) };
    // SAFETY: as are its messages.
    let messages = unsafe { message_names(entry) };
    Ok(PluginInfo {
        id,
        version,
        messages,
        error: None,
    })
}

fn incomplete(id: &str) -> Failure {
    let message = format!("plugin {id:?} lacks an id, create or handle_message");
    Failure::new(MEMPROF_ABI_MISMATCH, message)
}

/// # Safety
/// `raw` borrows bytes that live as long as the process.
pub(crate) unsafe fn text(raw: memprof_str_t) -> String {
    // SAFETY: promised by the caller.
    String::from_utf8_lossy(unsafe { raw.as_bytes() }).into_owned()
}

/// # Safety
/// The entry's messages live as long as the process.
unsafe fn message_names(entry: &memprof_plugin_entry_t) -> Vec<String> {
    if entry.messages.is_null() {
        return Vec::new();
    }
    (0..entry.message_count)
        .filter_map(|at| {
            // SAFETY: memprof.h: `messages` points to `message_count` pointers.
            let message = unsafe { entry.messages.add(at) };
            // SAFETY: as above.
            let message = unsafe { message.read() };
            // SAFETY: each of them points to a message, which lives as long as the process.
            let message = unsafe { message.as_ref() }?;
            // SAFETY: and so does its name.
            Some(unsafe { text(message.name) })
        })
        .collect()
}

struct Collected {
    content_type: Option<String>,
    body: Body,
}

unsafe extern "C" fn begin_body(ctx: *mut c_void, content_type: memprof_str_t) -> Status {
    // SAFETY: `Instance::message` passes its own collector, for one call on one thread.
    let collected = unsafe { &mut *ctx.cast::<Collected>() };
    if collected.content_type.is_some() || !collected.body.is_empty() {
        return MEMPROF_INTERNAL;
    }
    // SAFETY: the plugin lends the text for the call.
    collected.content_type = Some(unsafe { text(content_type) });
    MEMPROF_OK
}

unsafe extern "C" fn write_body(ctx: *mut c_void, chunk: memprof_str_t) -> Status {
    // SAFETY: as in `begin_body`.
    let collected = unsafe { &mut *ctx.cast::<Collected>() };
    // SAFETY: the plugin lends the bytes for the call.
    match collected.body.write(unsafe { chunk.as_bytes() }) {
        Ok(()) => MEMPROF_OK,
        Err(error) => {
            log::error!("a reply does not fit: {error}");
            MEMPROF_IO
        }
    }
}

static REPLY_FD: memprof_reply_fd_t = memprof_reply_fd_t {
    struct_size: size_of::<memprof_reply_fd_t>(),
    file: Some(take_file),
};

unsafe extern "C" fn take_file(
    ctx: *mut c_void,
    fd: c_int,
    size: u64,
    content_type: memprof_str_t,
) -> Status {
    // SAFETY: as in `begin_body`.
    let collected = unsafe { &mut *ctx.cast::<Collected>() };
    if collected.content_type.is_some() || !collected.body.is_empty() {
        return MEMPROF_INTERNAL;
    }
    if fd < 0 {
        return MEMPROF_INVALID_ARGUMENT;
    }
    // SAFETY: the plugin lends the descriptor for the call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    match Body::of_file(file, size) {
        Ok(body) => {
            // SAFETY: the plugin lends the text for the call.
            collected.content_type = Some(unsafe { text(content_type) });
            collected.body = body;
            MEMPROF_OK
        }
        Err(error) => {
            log::debug!("a reply as a file is refused: {error}");
            match error.kind() {
                io::ErrorKind::InvalidInput => MEMPROF_INVALID_ARGUMENT,
                _ => MEMPROF_IO,
            }
        }
    }
}

fn level(number: memprof_log_level_t) -> log::Level {
    match number {
        0 | 1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        4 => log::Level::Debug,
        _ => log::Level::Trace,
    }
}

unsafe extern "C" fn log_enabled(ctx: *mut c_void, number: memprof_log_level_t) -> i32 {
    // SAFETY: `Instance::create` leaked it.
    let context = unsafe { &*ctx.cast::<Context>() };
    let metadata = log::Metadata::builder()
        .level(level(number))
        .target("plugin")
        .build();
    i32::from(context.program.log.enabled(&metadata))
}

unsafe extern "C" fn log_line(
    ctx: *mut c_void,
    number: memprof_log_level_t,
    target: memprof_str_t,
    message: memprof_str_t,
) {
    // SAFETY: `Instance::create` leaked it.
    let context = unsafe { &*ctx.cast::<Context>() };
    // SAFETY: the plugin lends the text for the call.
    let target = String::from_utf8_lossy(unsafe { target.as_bytes() });
    // SAFETY: as above.
    let message = String::from_utf8_lossy(unsafe { message.as_bytes() });
    let level = level(number);
    let creating = context.in_creation.load(Ordering::Acquire);
    if creating && level == log::Level::Error {
        context
            .errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message.into_owned());
        return;
    }
    context.log(level, &target, &message);
}

unsafe extern "C" fn get_extension(ctx: *mut c_void, id: memprof_str_t) -> *const c_void {
    // SAFETY: `Instance::create` leaked it.
    let context = unsafe { &*ctx.cast::<Context>() };
    // SAFETY: the plugin lends the text for the call.
    let id = unsafe { id.as_bytes() };
    match &context.jemalloc {
        Some(jemalloc) if id == MEMPROF_EXTENSION_JEMALLOC.as_bytes() => {
            std::ptr::from_ref(jemalloc).cast()
        }
        _ if id == MEMPROF_EXTENSION_REPLY_FD.as_bytes() => std::ptr::from_ref(&REPLY_FD).cast(),
        _ => std::ptr::null(),
    }
}
