//! A process that nobody prepared, into which `memprof attach` has put the library: it gets a control
//! socket, for a while.
//!
//! An attachment has an end. One thread sleeps until then, or until the plugin's message `detach` calls
//! [`request_detach`]; it closes the socket and is the last one of ours to end. The library stays mapped, and the
//! next attachment calls it again.
//!
//! A forked child has an attachment of its own, with the same end, where that was asked for. Otherwise it has
//! none: a process of more than one thread cannot enter a user namespace (unshare(2), setns(2)), as sandboxes do
//! right after fork(2). Log lines go nowhere: the process's standard error is not ours.
#![expect(
    unsafe_code,
    reason = "what memprof-attach calls, and a handler of fork"
)]

mod thread_limit;

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use memprof_own::{Privileges, ProcessOnce, ThreadSpec};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{
    MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_UNSUPPORTED, memprof_plugin_entry_t,
};
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::config::{self, Control, Settings};
use super::instance::{self, Adapter, AdapterInstance};
use super::log::ProgramLog;
use super::{contain, control};
use crate::socket_dir::{self, abstract_name};
use thread_limit::RaisedThreadLimit;

/// For the threads that an attachment begins with, and their heaps.
const MEMORY: usize = 16 << 20;
const NO_MEMORY: &CStr =
    c"the process has no room left for it (RLIMIT_AS, RLIMIT_DATA or vm.max_map_count)";

/// How long a forked child is left alone.
const REST: Duration = Duration::from_millis(100);
/// How long an attachment waits for the one before it to be gone.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Made in a handler of fork(2) too, so it must not need an allocation.
static STAY: ThreadSpec = ThreadSpec {
    name: c"memprof-attach",
    work: |privileges| contain((), || run_attachment(privileges)),
};

static LOG: ProgramLog = ProgramLog {
    level: LevelFilter::Off,
    sink: |_, _| {},
};

static ADAPTER: Adapter = Adapter {
    log: &LOG,
    control: Control::On,
};

/// What becomes of the attachment: one of the next three.
static STATE: AtomicU32 = AtomicU32::new(AWAY);
/// There is none.
const AWAY: u32 = 0;
/// It lasts.
const HERE: u32 = 1;
/// It ends as soon as [`STAY`] wakes.
const LEAVING: u32 = 2;

/// When it ends, in milliseconds of the clock that runs while the machine sleeps.
static END: AtomicU64 = AtomicU64::new(0);
/// Forked children are attached to as well.
static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);
/// The thread of [`STAY`] is one of a forked child.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// The instance was made here, not by another adapter.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// What `memprof attach` passes.
#[derive(Debug, Deserialize)]
struct Attachment {
    /// How long it lasts.
    lease_ms: u64,
    /// Whether forked children are attached to as well.
    #[serde(default)]
    children: bool,
    /// The plugin's keys, as `key=value`.
    #[serde(default)]
    words: Vec<String>,
    /// A file with keys of the plugin's: its path where `memprof attach` runs, and its text.
    file: Option<ConfigFile>,
    /// The limit of threads, where it was raised for ours.
    thread_limit: Option<RaisedThreadLimit>,
}

#[derive(Debug, Deserialize)]
struct ConfigFile {
    path: String,
    text: String,
}

/// Makes the instance, or wakes it, and opens the socket. Null, or why not.
///
/// # Safety
/// `toml` is a NUL-terminated text.
#[doc(hidden)]
pub unsafe fn attached(
    entry: &'static memprof_plugin_entry_t,
    toml: *const c_char,
) -> *const c_char {
    // Before anything is allocated.
    if memprof_own::require_memory(MEMORY).is_err() || !memprof_own::allocate_thread_locals() {
        return NO_MEMORY.as_ptr();
    }
    // SAFETY: promised by the caller.
    attached_with_memory(entry, unsafe { CStr::from_ptr(toml) })
}

/// Not inlined, as [`memprof_own::allocate_thread_locals`] demands.
#[inline(never)]
fn attached_with_memory(entry: &'static memprof_plugin_entry_t, toml: &CStr) -> *const c_char {
    contain(c"attaching panicked".as_ptr(), || {
        set_thread_name();
        match attach(entry, &toml.to_string_lossy()) {
            Ok(()) => ptr::null(),
            // Leaked: the caller reads it when we have returned.
            Err(failure) => CString::new(failure.to_string().replace('\0', " "))
                .unwrap_or_default()
                .into_raw(),
        }
    })
}

/// The same for an attachment that comes on a thread of the program's, which is not to count as ours.
///
/// # Errors
/// Why not.
#[cfg(any(feature = "adapter-java", feature = "adapter-node"))]
pub(super) fn attach_from(
    entry: &'static memprof_plugin_entry_t,
    toml: &[u8],
) -> Result<(), String> {
    let toml = String::from_utf8_lossy(toml).into_owned();
    let (says, said) = std::sync::mpsc::channel();
    let thread = memprof_own::spawn(c"memprof-attach", move |privileges| {
        privileges.match_main_thread();
        // The receiver waits.
        let _sent = says.send(attach(entry, &toml).map_err(|failure| failure.to_string()));
    });
    let thread = thread.map_err(|error| format!("failed to start a thread: {error}"))?;
    thread.join();
    said.recv()
        .unwrap_or_else(|_| Err("attaching panicked".to_owned()))
}

/// Whether the process was attached to, and still is.
pub fn is_attached() -> bool {
    STATE.load(Ordering::Acquire) == HERE
}

/// Ends the attachment: closes the socket once the message that is being answered was answered.
pub fn request_detach() {
    STATE.store(LEAVING, Ordering::Release);
    // It fails for addresses only that are none.
    let _ = futex::wake(&STATE, Flags::PRIVATE, u32::MAX >> 1);
}

/// When the attachment ends by itself, in seconds from now.
pub fn remaining_lease() -> Option<Duration> {
    let left = END.load(Ordering::Acquire).saturating_sub(now_ms());
    is_attached().then(|| Duration::from_millis(left))
}

fn attach(entry: &'static memprof_plugin_entry_t, toml: &str) -> Result<(), Failure> {
    let invalid = |why: String| Failure::new(MEMPROF_INVALID_ARGUMENT, why);
    let attachment: Attachment =
        toml::from_str(toml).map_err(|error| invalid(error.to_string()))?;
    let settings = attachment.settings()?;
    wait_until_detached()?;
    let is_ours = IS_OURS.load(Ordering::Acquire);
    let is_used = instance::instance().is_some() && (!is_ours || instance::is_shared());
    if is_used || control::is_open() {
        return Err(loaded_by_the_program());
    }
    let control = settings.control.clone();
    let has_keys = !settings.config_text().is_empty();
    let instance = match instance::instance() {
        // Nothing was said that it does not know.
        Some(asleep) if !has_keys && !asleep.has_keys() => asleep,
        _ => {
            // SAFETY: it is ours and asleep, and only one `memprof attach` is at it.
            unsafe { instance::remove() };
            let made = instance::make(entry, &ADAPTER, settings, has_keys)?;
            made.ok_or_else(loaded_by_the_program)?
        }
    };
    if instance.is_of_another_copy() {
        return Err(loaded_by_the_program());
    }
    IS_OURS.store(true, Ordering::Release);
    instance.enter_thread();
    open_control(instance, control.as_ref())
        // SAFETY: as above; without a socket nobody can ask for it.
        .inspect_err(|_| unsafe { instance::remove() })?;
    END.store(now_ms() + attachment.lease_ms, Ordering::Release);
    HAS_CHILDREN.store(attachment.children, Ordering::Release);
    IS_CHILD.store(false, Ordering::Release);
    thread_limit::PUT_BACK.set(attachment.thread_limit);
    STATE.store(HERE, Ordering::Release);
    follow_forks();
    memprof_plugin_abi::stay_loaded();
    if let Err(error) = memprof_own::spawn_static(&STAY) {
        control::close();
        // SAFETY: the socket is closed, and its threads have ended.
        unsafe { instance::remove() };
        thread_limit::PUT_BACK.set(None);
        STATE.store(AWAY, Ordering::Release);
        let message = format!("failed to start the thread that ends the attachment: {error}");
        return Err(Failure::new(MEMPROF_INTERNAL, message));
    }
    Ok(())
}

fn loaded_by_the_program() -> Failure {
    let message = "the program has loaded the plugin itself";
    Failure::new(MEMPROF_UNSUPPORTED, message)
}

/// Opens the socket where it is asked for, or in the default directory; where that cannot be, as without /run
/// after chroot(2), in /tmp; and where nothing can be written to, under a name that is no file.
fn open_control(instance: &AdapterInstance, control: Option<&Control>) -> Result<(), Failure> {
    let opened = instance.open_control(&ADAPTER, control);
    let in_tmp = |failure: Failure| {
        let directory = socket_dir::in_tmp(rustix::process::geteuid().as_raw());
        if control.is_some() || socket_dir::make_private(&directory).is_err() {
            return Err(failure);
        }
        let path = directory.join(format!("{}.sock", std::process::id()));
        instance.open_control(&ADAPTER, Some(&Control::At(path)))
    };
    let without_file = |failure: Failure| match control {
        Some(_) => Err(failure),
        None => {
            let name =
                abstract_name::new().map_err(|error| Failure::io("name a socket", &error))?;
            instance.open_control(&ADAPTER, Some(&Control::At(name)))
        }
    };
    opened.or_else(in_tmp).or_else(without_file)
}

impl Attachment {
    fn settings(&self) -> Result<Settings, Failure> {
        let words = self.words.iter().map(|word| config::pair(word));
        let words = words.collect::<Result<Vec<_>, _>>()?;
        let file = self.file.as_ref();
        let file = file.map(|file| (file.path.as_str(), file.text.as_str()));
        config::settings(words, file)
    }
}

/// An attachment that ends may still be at it.
fn wait_until_detached() -> Result<(), Failure> {
    let begun = Instant::now();
    while STATE.load(Ordering::Acquire) == LEAVING && begun.elapsed() < PATIENCE {
        thread::sleep(LOOK_AGAIN);
    }
    match STATE.load(Ordering::Acquire) {
        AWAY => Ok(()),
        HERE => Err(Failure::new(MEMPROF_UNSUPPORTED, "it is attached already")),
        _ => Err(Failure::new(
            MEMPROF_UNSUPPORTED,
            "it is still being detached",
        )),
    }
}

/// Names the thread that `memprof attach` has made, which is memprof's by the first seven letters. It is none of the
/// plugin's: where its memprof was killed, it waits for that one's answers, up to 20 s, whatever is detached meanwhile.
fn set_thread_name() {
    // SAFETY: pthread_self(3) has no conditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: pthread_setname_np(3): a NUL-terminated name of at most 15 bytes.
    unsafe { libc::pthread_setname_np(this, c"memprof.loader".as_ptr()) };
}

fn follow_forks() {
    static FOLLOWS: ProcessOnce = ProcessOnce::new();
    FOLLOWS.call(|| {
        // SAFETY: pthread_atfork(3): this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

extern "C" fn forked() {
    contain((), || {
        let stays = STATE.load(Ordering::Acquire) == HERE && HAS_CHILDREN.load(Ordering::Acquire);
        IS_CHILD.store(stays, Ordering::Release);
        // Otherwise the thread that was to end it is the parent's.
        if !stays || memprof_own::spawn_static(&STAY).is_err() {
            STATE.store(AWAY, Ordering::Release);
            thread_limit::PUT_BACK.now();
        }
    });
}

/// The attachment, from its thread's side.
fn run_attachment(privileges: &mut Privileges) {
    let Some(instance) = instance::instance() else {
        return;
    };
    if IS_CHILD.load(Ordering::Acquire) {
        thread::sleep(REST);
        privileges.match_main_thread();
        instance.enter_thread();
        // The socket's path is the parent's; this one is called by its own pid.
        let _refused = open_control(instance, None);
    } else {
        instance.enter_thread();
    }
    while STATE.load(Ordering::Acquire) == HERE {
        let left = END.load(Ordering::Acquire).saturating_sub(now_ms());
        if left > 0 {
            wait(HERE, Duration::from_millis(left));
            continue;
        }
        privileges.match_main_thread();
        instance.enter_thread();
        instance.message(b"detach");
        // Refused, as while a dump runs: again in a moment.
        wait(HERE, Duration::from_secs(1));
    }
    privileges.match_main_thread();
    control::close();
    thread_limit::PUT_BACK.now();
    STATE.store(AWAY, Ordering::Release);
}

/// Returns when the state is not `known` any more, at the latest after `time`, or for no reason.
fn wait(known: u32, time: Duration) {
    let time = Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    };
    // Each reason to return is one to look again.
    let _ = futex::wait(&STATE, Flags::PRIVATE, known, Some(&time));
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_attached {
    ($how:ident, $entry:path) => {
        /// What `memprof attach` calls when it has put this library into a process.
        ///
        /// # Safety
        /// Only memprof-attach calls it, on a thread of its own, with a NUL-terminated text.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn memprof_attached(
            toml: *const ::std::ffi::c_char,
        ) -> *const ::std::ffi::c_char {
            // SAFETY: the argument of memprof-attach, unchanged.
            unsafe { $crate::adapters::attachment::attached(&$entry, toml) }
        }
    };
}
