//! A running process that `memprof attach` has loaded the library into. It gets a control socket for a limited time.
//!
//! An attachment ends when its lease expires, or when the plugin's message `detach` calls [`request_detach`]. One
//! thread sleeps until then, closes the socket, and is the last of memprof's threads to end. The library stays mapped,
//! and the next attachment calls it again.
//!
//! A forked child has its own attachment with the same end, if that was requested. Otherwise it has none: a process
//! with more than one thread cannot enter a user namespace (unshare(2), setns(2)), as sandboxes do right after fork(2).
//! Log lines are dropped: the standard error is the process's.
#![expect(
    unsafe_code,
    reason = "called by memprof-attach, and a handler of fork(2)"
)]

mod argument;
mod attach_lock;
mod thread_limit;

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use log::LevelFilter;
use memprof_own::{DescriptorTable, Privileges, ProcessOnce, ThreadSpec, boot_time};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, memprof_plugin_entry_t};
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

use super::config::Control;
use super::instance::{self, Adapter, AdapterInstance};
use super::log::ProgramLog;
use super::{catch_panic, control};
use crate::socket_dir::{self, abstract_name};
use argument::Attachment;
use attach_lock::{loaded_by_program_error, lock_when_detached};

/// Memory in bytes that must be free: for the first threads of an attachment, and their heaps.
const THREADS_BYTES: usize = 16 << 20;
const NO_MEMORY: &CStr =
    c"the process has no room left for it (RLIMIT_AS, RLIMIT_DATA or vm.max_map_count)";

/// Delay before memprof opens the socket of a forked child, which may first execute another program.
const CHILD_DELAY: Duration = Duration::from_millis(100);

/// The thread that ends the attachment. A fork handler creates it too, so it must not need an allocation.
static END_THREAD: ThreadSpec = ThreadSpec {
    name: c"memprof-attach",
    work: |privileges| catch_panic((), || wait_and_end_attachment(privileges)),
};

static LOG: ProgramLog = ProgramLog {
    level: LevelFilter::Off,
    sink: |_, _| {},
};

static ADAPTER: Adapter = Adapter {
    log: &LOG,
    control: Control::On,
};

/// State of the attachment: one of the next three.
static STATE: AtomicU32 = AtomicU32::new(DETACHED);
/// The process is not attached to.
const DETACHED: u32 = 0;
/// The process is attached to.
const ATTACHED: u32 = 1;
/// The attachment ends as soon as [`END_THREAD`] wakes up.
const DETACHING: u32 = 2;

/// End of the lease in milliseconds of `CLOCK_BOOTTIME`, which also runs while the machine sleeps.
static LEASE_END_MS: AtomicU64 = AtomicU64::new(0);
/// Whether forked children are attached to as well.
static INCLUDES_CHILDREN: AtomicBool = AtomicBool::new(false);
/// Whether [`END_THREAD`] runs in a forked child.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// Whether an attachment created the instance; otherwise another adapter did.
static CREATED_INSTANCE: AtomicBool = AtomicBool::new(false);

/// Value of the argument `table` with which memprof-attach (`injected_code.rs`) says that the calling thread has a
/// descriptor table of its own, without files: "Tabl" in ASCII.
const OWN_TABLE: u64 = 0x5461_626c;

/// Attaches memprof to this process: creates or reuses the plugin's instance, opens the control socket, and starts the
/// thread that later ends the attachment. `toml` has the config and the lease. Returns null, or a leaked text with the
/// reason for a failure. Fails at once if the process has too little memory for memprof's threads.
///
/// # Safety
/// `toml` is a NUL-terminated text; `table` is [`OWN_TABLE`] only if the calling thread has its own descriptor table.
#[doc(hidden)]
pub unsafe fn attach_process(
    entry: &'static memprof_plugin_entry_t,
    toml: *const c_char,
    table: u64,
) -> *const c_char {
    if table == OWN_TABLE {
        // Otherwise a file of memprof's could get the number of a standard stream, and receive what is printed there.
        DescriptorTable::occupy_standard_streams();
    }
    // Checked before the first allocation and the first use of a thread-local variable: if there is no memory for such
    // a variable, the loader ends the process.
    if memprof_own::require_memory(THREADS_BYTES).is_err() || !memprof_own::allocate_thread_locals()
    {
        return NO_MEMORY.as_ptr();
    }
    // SAFETY: the caller promises a NUL-terminated text.
    attach_or_leak_reason(entry, unsafe { CStr::from_ptr(toml) })
}

/// Names the calling thread `memprof.loader`, and attaches to the process. Returns null, or a leaked text with the
/// reason for a failure. The caller has checked that there is memory. Not inlined, because the compiler could otherwise
/// use a thread-local variable before [`memprof_own::allocate_thread_locals`].
#[inline(never)]
fn attach_or_leak_reason(entry: &'static memprof_plugin_entry_t, toml: &CStr) -> *const c_char {
    catch_panic(c"attaching panicked".as_ptr(), || {
        set_loader_thread_name();
        match start_attachment(entry, &toml.to_string_lossy()) {
            Ok(()) => ptr::null(),
            // The text is leaked, because the caller reads it after the return.
            Err(failure) => CString::new(failure.to_string().replace('\0', " "))
                .unwrap_or_default()
                .into_raw(),
        }
    })
}

/// Attaches to the process on a new thread of memprof's, and waits for it. The calling thread is the program's, so it
/// must not be reported to the plugin as memprof's. The error is the reason as text, also if no thread can be started.
#[cfg(any(feature = "adapter-java", feature = "adapter-node"))]
pub(super) fn attach_on_new_thread(
    entry: &'static memprof_plugin_entry_t,
    toml: &[u8],
) -> Result<(), String> {
    let toml = String::from_utf8_lossy(toml).into_owned();
    let (sender, receiver) = std::sync::mpsc::channel();
    let needs = memprof_own::Needs::FOR_PLUGINS;
    let thread = memprof_own::spawn_with_needs(c"memprof-attach", needs, move |privileges| {
        // The threads of the socket inherit the new table, which has none of the program's files.
        memprof_own::leave_program_descriptor_table();
        privileges.limit_to_main_thread();
        // Sending succeeds, because the receiver exists until this thread has ended.
        let _result =
            sender.send(start_attachment(entry, &toml).map_err(|failure| failure.to_string()));
    });
    let thread = thread.map_err(|error| format!("failed to start a thread: {error}"))?;
    thread.join();
    receiver
        .recv()
        .unwrap_or_else(|_| Err("attaching panicked".to_owned()))
}

/// Returns whether the process is attached to. False from [`request_detach`] on.
pub fn is_attached() -> bool {
    STATE.load(Ordering::Acquire) == ATTACHED
}

/// Requests the end of the attachment, and returns without waiting. The thread that ends the attachment then closes the
/// control socket, after the pending replies were sent.
pub fn request_detach() {
    STATE.store(DETACHING, Ordering::Release);
    // The largest number of threads that futex(2) accepts, so that all waiting threads wake up. It fails only for
    // invalid addresses.
    let _ = futex::wake(&STATE, Flags::PRIVATE, u32::MAX >> 1);
}

/// Returns the time until the lease expires. `None` if the process is not attached to, or is being detached from.
pub fn remaining_lease() -> Option<Duration> {
    let remaining = LEASE_END_MS
        .load(Ordering::Acquire)
        .saturating_sub(boot_time_ms());
    is_attached().then(|| Duration::from_millis(remaining))
}

/// Attaches to this process: creates or reuses the plugin's instance, opens the control socket, and starts the thread
/// that ends the attachment. `toml` is the text that `memprof attach` passes. Waits up to 10 s for another attachment
/// that begins or ends. Fails if the config is invalid, or if the process is attached to already or has loaded the
/// plugin itself. Fails also if the plugin, the socket or the thread fails to start; the process is not attached to
/// then.
fn start_attachment(entry: &'static memprof_plugin_entry_t, toml: &str) -> Result<(), Failure> {
    let invalid = |reason: String| Failure::new(MEMPROF_INVALID_ARGUMENT, reason);
    let attachment: Attachment =
        toml::from_str(toml).map_err(|error| invalid(error.to_string()))?;
    let settings = attachment.parse_settings()?;
    let _guard = lock_when_detached()?;
    let is_own_instance = CREATED_INSTANCE.load(Ordering::Acquire);
    let is_used =
        instance::instance().is_some() && (!is_own_instance || instance::is_instance_shared());
    if is_used || control::is_socket_open() {
        return Err(loaded_by_program_error());
    }
    let control = settings.control.clone();
    let has_config = !settings.config_text().is_empty();
    let instance = match instance::instance() {
        // An idle instance is reused if neither attachment has a config.
        Some(idle) if !has_config && !idle.has_config() => idle,
        _ => {
            // SAFETY: the attachment created the instance, it is idle, and the lock keeps other attachments out.
            unsafe { instance::remove_instance() };
            let created =
                instance::create_removable_instance(entry, &ADAPTER, settings, has_config)?;
            created.ok_or_else(loaded_by_program_error)?
        }
    };
    if instance.is_from_other_copy() {
        return Err(loaded_by_program_error());
    }
    CREATED_INSTANCE.store(true, Ordering::Release);
    instance.report_memprof_thread();
    let lease_end = boot_time_ms().saturating_add(attachment.lease_ms);
    LEASE_END_MS.store(lease_end, Ordering::Release);
    INCLUDES_CHILDREN.store(attachment.children, Ordering::Release);
    IS_CHILD.store(false, Ordering::Release);
    thread_limit::RAISED_LIMIT.record(attachment.thread_limit);
    register_fork_handler();
    // The fork handler must stay mapped.
    memprof_plugin_abi::stay_loaded();
    // Before the socket is open: a `detach` that comes at once must not be lost.
    STATE.store(ATTACHED, Ordering::Release);
    let started =
        open_socket_with_fallbacks(instance, control.as_ref()).and_then(|()| start_detach_thread());
    if started.is_err() {
        control::close_socket();
        // SAFETY: the attachment created the instance; the socket is closed, and its threads have ended.
        unsafe { instance::remove_instance() };
        thread_limit::RAISED_LIMIT.record(None);
        STATE.store(DETACHED, Ordering::Release);
    }
    started
}

/// Starts the thread that closes the control socket when the lease expires or a detachment is requested. Fails if no
/// thread can be created.
fn start_detach_thread() -> Result<(), Failure> {
    let started = memprof_own::spawn_static(&END_THREAD);
    started.map(drop).map_err(|error| {
        let message = format!("failed to start the thread that ends the attachment: {error}");
        Failure::new(MEMPROF_INTERNAL, message)
    })
}

/// Opens the control socket where `control` says. If `control` is `None`, opens the socket in the default directory. If
/// this fails, as without /run after chroot(2), opens it in /tmp; if this fails too, under an abstract name. Fails with
/// the error of the last attempt.
fn open_socket_with_fallbacks(
    instance: &AdapterInstance,
    control: Option<&Control>,
) -> Result<(), Failure> {
    let opened = instance.open_control_socket(&ADAPTER, control);
    let open_in_tmp = |failure: Failure| {
        let directory = socket_dir::tmp_dir(rustix::process::geteuid().as_raw());
        if control.is_some() || socket_dir::ensure_private_dir(&directory).is_err() {
            return Err(failure);
        }
        let path = directory.join(format!("{}.sock", std::process::id()));
        instance.open_control_socket(&ADAPTER, Some(&Control::Path(path)))
    };
    let open_abstract = |failure: Failure| match control {
        Some(_) => Err(failure),
        None => {
            let name = abstract_name::generate_abstract_name()
                .map_err(|error| Failure::io("name a socket", &error))?;
            instance.open_control_socket(&ADAPTER, Some(&Control::Path(name)))
        }
    };
    opened.or_else(open_in_tmp).or_else(open_abstract)
}

/// Names the calling thread, which `memprof attach` created, `memprof.loader`. Detaching waits for threads named
/// `memprof-…`, but must not wait for this one: if its `memprof attach` was killed, the thread lives for up to 20 s.
fn set_loader_thread_name() {
    // SAFETY: pthread_self(3) has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: pthread_setname_np(3): a NUL-terminated name of at most 15 bytes.
    unsafe { libc::pthread_setname_np(this, c"memprof.loader".as_ptr()) };
}

/// Registers [`after_fork_in_child`] as a fork handler, once in a process.
fn register_fork_handler() {
    static REGISTERED: ProcessOnce = ProcessOnce::new();
    REGISTERED.call(|| {
        // If the handler cannot be registered, no forked child continues the attachment.
        // SAFETY: pthread_atfork(3): the handler is in this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
}

/// Fork handler: continues the attachment in the child, on a new thread. Instead marks the child as detached, and
/// restores its limit of threads, if children are excluded, if the parent is not attached to or is being detached from,
/// or if the thread cannot be created.
extern "C" fn after_fork_in_child() {
    catch_panic((), || {
        let continues =
            STATE.load(Ordering::Acquire) == ATTACHED && INCLUDES_CHILDREN.load(Ordering::Acquire);
        IS_CHILD.store(continues, Ordering::Release);
        // The thread that ends the attachment exists only in the parent.
        if !continues || memprof_own::spawn_static(&END_THREAD).is_err() {
            STATE.store(DETACHED, Ordering::Release);
            // The child has inherited the raised limit.
            thread_limit::RAISED_LIMIT.restore();
        }
    });
}

/// Waits until the lease expires or a detachment is requested. Then closes the control socket, restores the limit of
/// threads, and marks the process as detached. When the lease expires, sends `detach` each second until the plugin
/// accepts it. In a forked child, first waits [`CHILD_DELAY`] and opens the child's socket. Runs on [`END_THREAD`].
fn wait_and_end_attachment(privileges: &mut Privileges) {
    let Some(instance) = instance::instance() else {
        // Never: `start_attachment` stores the instance before it starts this thread.
        return;
    };
    if IS_CHILD.load(Ordering::Acquire) {
        thread::sleep(CHILD_DELAY);
        memprof_own::leave_program_descriptor_table();
        privileges.limit_to_main_thread();
        instance.report_memprof_thread();
        // The child's socket has another path, with its own pid. A child without a socket still ends with the lease.
        let _result = open_socket_with_fallbacks(instance, None);
    } else {
        instance.report_memprof_thread();
    }
    while let Some(remaining) = remaining_lease() {
        if !remaining.is_zero() {
            wait_for_state_change(ATTACHED, remaining);
            continue;
        }
        privileges.limit_to_main_thread();
        instance.report_memprof_thread();
        instance.send_message(b"detach");
        // The plugin may refuse to detach, for example while a dump runs: retry.
        wait_for_state_change(ATTACHED, Duration::from_secs(1));
    }
    privileges.limit_to_main_thread();
    control::close_socket();
    thread_limit::RAISED_LIMIT.restore();
    STATE.store(DETACHED, Ordering::Release);
}

/// Waits until [`STATE`] is not `known` any more, at most for `timeout`. May return earlier.
fn wait_for_state_change(known: u32, timeout: Duration) {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // The caller checks the state again, whatever the result.
    let _ = futex::wait(&STATE, Flags::PRIVATE, known, Some(&timeout));
}

/// Returns the time since boot, suspension included, in milliseconds (`CLOCK_BOOTTIME`).
fn boot_time_ms() -> u64 {
    boot_time().as_millis() as u64
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_attached {
    ($how:ident, $entry:path) => {
        /// Entry point that `memprof attach` calls after loading this library. Returns null, or the reason of a
        /// failure.
        ///
        /// # Safety
        /// Only memprof-attach calls it, on a thread that it created: `toml` is NUL-terminated, and `table` says
        /// whether that thread has a descriptor table of its own.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn memprof_attached(
            toml: *const ::std::ffi::c_char,
            table: u64,
        ) -> *const ::std::ffi::c_char {
            // SAFETY: the arguments of memprof-attach, unchanged.
            unsafe { $crate::adapters::attachment::attach_process(&$entry, toml, table) }
        }
    };
}
