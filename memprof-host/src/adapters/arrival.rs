//! Programs whose config knows nothing of memprof: the environment says it, and they get a control socket.
//!
//! A thread waits for 100 ms before it makes the plugin and opens the socket: a process that ends or
//! executes another program sooner is not touched, unless it has a message. Where there is a config of the plugin's, an
//! exit in that time waits until the plugin is there: it may dump at the exit, or the config may be wrong.
//!
//! - A forked child closes its parent's socket at once, and opens one of its own by the same
//!   rule. Children made by `vfork`, `_Fork` or a bare `clone` are not noticed until they execute a program.
//! - A daemon that closes all descriptors loses the socket and opens it again at the next
//!   connection; it never takes a descriptor of the daemon's for its own.
#![expect(unsafe_code, reason = "handlers of fork(2) and exit(3)")]

use std::io::{self, IoSlice};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use log::{Level, LevelFilter};
use memprof_own::{Kept, Plan, Privileges, Reading};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::fstat;
use rustix::io::{Errno, writev};

use super::config::{Control, Settings};
use super::event::Event;
use super::instance::{self, Adapter, AdapterInstance};
use super::log::Lines;
use super::symbol::Missing;
use super::{contain, copies, environment};
use crate::socket_dir::own_default_dir;

/// How long a process is left alone.
const REST: Duration = Duration::from_millis(100);

/// Made in a handler of fork(2) too, so it must not need an allocation.
static ARRIVAL: Plan = Plan {
    name: c"memprof-arrival",
    work: |privileges| {
        EXITS.wait(REST);
        contain((), || arrive(privileges));
        HAS_ARRIVED.happen();
    },
};

/// Of a program whose figures are wanted, however short it is.
static ARRIVAL_AT_ONCE: Plan = Plan {
    name: c"memprof-arrival",
    work: |privileges| {
        // The constructor that begins to sample may come after the one that made this thread.
        SAMPLES.wait(PATIENCE);
        contain((), || arrive(privileges));
        HAS_ARRIVED.happen();
    },
};

/// How long an exit waits for a plugin that is being made.
const PATIENCE: Duration = Duration::from_secs(5);

/// Forked children get no plugin: only the figures of programs are wanted, and whether a child got them would depend
/// on which comes first, the plugin or the fork.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

static SAMPLES: Event = Event::new();
/// The program has called exit(3).
static EXITS: Event = Event::new();
static HAS_ARRIVED: Event = Event::new();

/// What the environment said when the library was loaded or first used. It is not read again, because the
/// program may change it at any time on another thread.
struct Start {
    entry: &'static memprof_plugin_entry_t,
    log: Lines,
    settings: Result<Settings, Failure>,
    stderr: StandardError,
}

/// Where log lines go: never to a file that the program has opened under standard error's number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StandardError {
    /// The one of the start, by device and inode, where there was one.
    Unchanged(Option<(u64, u64)>),
    /// Whichever it is: the program puts nothing there but another log.
    #[cfg(feature = "adapter-postgres")]
    Redirected,
}

static START: Kept<Start> = Kept::new();

/// The process that has made its thread, or tried to.
static ARRIVING: AtomicU32 = AtomicU32::new(0);

/// Begins to wait for the moment to open the socket, once in a process.
pub(super) fn begin(entry: &'static memprof_plugin_entry_t) {
    let _begun = start(entry, &ARRIVAL, unchanged(), environment::settings);
    if environment::has_config() {
        wait_at_exit();
    }
}

/// The same in a program that has settings of its own, and replaces its standard error by its log.
#[cfg(feature = "adapter-postgres")]
pub(super) fn begin_with(
    entry: &'static memprof_plugin_entry_t,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) {
    let _begun = start(entry, &ARRIVAL, StandardError::Redirected, settings);
}

/// Makes the plugin now, on a thread of its own, for which an exit of the program waits.
pub(super) fn begin_at_once(entry: &'static memprof_plugin_entry_t) {
    IS_ALONE.store(true, Ordering::Release);
    let _begun = start(entry, &ARRIVAL_AT_ONCE, unchanged(), environment::settings);
    wait_at_exit();
}

/// Has an exit wait for the plugin. Children that were forked do not wait.
fn wait_at_exit() {
    // The C library does not free the lock of its list in a forked child, which exit(3) takes.
    let _no_fork = Reading::begin();
    // SAFETY: atexit(3): this library is never unloaded. What the plugin registers later is called before,
    // or after it where the exit has begun by then.
    unsafe { libc::atexit(wait_for_arrival) };
}

/// The program is sampled by now, or cannot be: a plugin that comes at once may.
#[cfg(feature = "adapter-preload")]
#[doc(hidden)]
pub fn begun_to_sample() {
    SAMPLES.happen();
}

extern "C" fn wait_for_arrival() {
    // A child's thread stays where it is: its exit does not wait, so it would make the plugin in a process that ends.
    if HAS_ARRIVED.has_happened() {
        return;
    }
    EXITS.happen();
    HAS_ARRIVED.wait(PATIENCE);
}

/// Makes the plugin, in an entry point that the program called because it wants to send messages.
pub(super) fn enter(entry: &'static memprof_plugin_entry_t) {
    contain((), || {
        let start = start(entry, &ARRIVAL, unchanged(), environment::settings);
        let _made = instance(start);
    });
}

fn instance(start: &'static Start) -> &'static AdapterInstance {
    instance::obtain(start.entry, &start.adapter(), || start.settings.clone()).0
}

/// The reply to a message as text, after [`enter`].
///
/// # Errors
/// Why not; also a panic is a reason.
pub(super) fn send(message: &[u8]) -> Result<String, String> {
    answer(|instance| instance.answer(message).into_result())
}

/// The reply to a message as JSON, after [`enter`].
///
/// # Errors
/// As for [`send`].
pub(super) fn call(message: &[u8]) -> Result<String, String> {
    answer(|instance| instance.json(message))
}

/// The same for all processes of the server: JSON. `gave_up` ends the wait for those that do not answer.
#[cfg(feature = "adapter-postgres")]
pub(super) fn send_to_all(message: &[u8], gave_up: impl Fn() -> bool) -> Result<String, String> {
    answer(|instance| Ok(instance.answers(message, gave_up)))
}

/// Whether the config lets everybody send a message, also where nobody tells them apart.
#[cfg(feature = "adapter-mariadb")]
pub(super) fn allows(message: &str) -> bool {
    let settings = START.get().and_then(|start| start.settings.as_ref().ok());
    settings.is_some_and(|settings| settings.allow.iter().any(|allowed| allowed == message))
}

fn answer(ask: impl FnOnce(&AdapterInstance) -> Result<String, String>) -> Result<String, String> {
    let panicked = Err("the plugin panicked".to_owned());
    contain(panicked, || match START.get() {
        Some(start) => ask(instance(start)),
        None => Err("the plugin is not loaded".to_owned()),
    })
}

/// Logs why an entry point did nothing.
pub(super) fn refuse(missing: Missing) {
    if let Some(start) = START.get() {
        start.log.line(Level::Error, &missing.to_string());
    }
}

fn start(
    entry: &'static memprof_plugin_entry_t,
    arrival: &'static Plan,
    stderr: StandardError,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) -> &'static Start {
    let start = START.get().unwrap_or_else(|| {
        let level = environment::level();
        let log = Lines {
            level: *level.as_ref().unwrap_or(&LevelFilter::Warn),
            sink: write,
        };
        let settings = level.and_then(|_| settings());
        START.keep(Start {
            entry,
            log,
            settings,
            stderr,
        })
    });
    watch_forks();
    spawn_once(arrival);
    start
}

/// Has forked children begin too. Does not wait for a thread that is at it: this one may hold a lock of the loader's.
fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.swap(true, Ordering::AcqRel) {
        memprof_plugin_abi::stay_loaded();
        Reading::watch_forks();
        // SAFETY: pthread_atfork(3): this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

extern "C" fn forked() {
    // The thread that an exit would wait for is the parent's.
    HAS_ARRIVED.happen();
    if !IS_ALONE.load(Ordering::Acquire) {
        contain((), || spawn_once(&ARRIVAL));
    }
}

fn spawn_once(arrival: &'static Plan) {
    let own = std::process::id();
    if ARRIVING.swap(own, Ordering::AcqRel) != own {
        spawn(arrival);
    }
}

/// Starts the thread that opens the socket.
fn spawn(arrival: &'static Plan) {
    if let Err(error) = memprof_own::spawn_plan(arrival) {
        // No exit waits for what never comes.
        HAS_ARRIVED.happen();
        // Allocates nothing: this may be a handler of fork(2), and memory may be what is missing.
        let logs = |start: &&Start| start.log.level >= LevelFilter::Error;
        if let Some(start) = START.get().filter(logs) {
            let text = match error.raw_os_error() {
                Some(libc::ENOMEM) => "memprof cannot reach this program: no thread (ENOMEM)",
                Some(libc::EAGAIN) => "memprof cannot reach this program: no thread (EAGAIN)",
                _ => "memprof cannot reach this program: no thread",
            };
            (start.log.sink)(Level::Error, text);
        }
    }
}

fn arrive(privileges: &mut Privileges) {
    privileges.follow();
    if let Some(instance) = instance::instance() {
        instance.enter_thread();
    }
    let Some(start) = START.get() else {
        return;
    };
    if is_served(start) {
        return;
    }
    let instance = instance(start);
    instance.enter_thread();
    let _sole = copies::sole(start.entry);
    // Another copy of this library may have opened one meanwhile.
    if is_served(start) {
        return;
    }
    // What is wrong was logged; the program goes on without.
    let _logged = instance.open_control(&start.adapter(), start.control());
}

/// Whether this process has a control socket already.
fn is_served(start: &Start) -> bool {
    let is_host = is_host();
    if is_host {
        let line = "this program is a memprof host itself";
        start.log.line(Level::Info, line);
    }
    is_host
}

/// Whether the program serves this process's control socket by its own doing. In containers that
/// share the directory, another process of the same pid may.
fn is_host() -> bool {
    let own = std::process::id();
    let socket = own_default_dir().join(format!("{own}.sock"));
    let peer = UnixStream::connect(socket).map(|stream| getsockopt(&stream, PeerCredentials));
    matches!(peer, Ok(Ok(peer)) if u32::try_from(peer.pid()) == Ok(own))
}

impl Start {
    fn adapter(&'static self) -> Adapter {
        Adapter {
            log: &self.log,
            control: Control::On,
        }
    }

    fn control(&self) -> Option<&Control> {
        self.settings.as_ref().ok()?.control.as_ref()
    }
}

fn unchanged() -> StandardError {
    let stat = fstat(io::stderr()).ok();
    StandardError::Unchanged(stat.map(|stat| (stat.st_dev, stat.st_ino)))
}

/// Writes to standard error, as long as it is the one that log lines go to.
fn write(level: Level, text: &str) {
    let level = match level {
        Level::Error => "error: ",
        Level::Warn => "warn: ",
        Level::Info => "info: ",
        Level::Debug => "debug: ",
        Level::Trace => "trace: ",
    };
    print(level, text);
}

/// Writes a reply there, where the program has nothing else for it.
pub(super) fn say(reply: &str) {
    print("", reply);
}

fn print(level: &str, text: &str) {
    let is_log = |stderr| match stderr {
        StandardError::Unchanged(_) => stderr == unchanged(),
        #[cfg(feature = "adapter-postgres")]
        StandardError::Redirected => true,
    };
    if START.get().is_some_and(|start| is_log(start.stderr)) {
        let parts = ["memprof: ", level, text, "\n"].map(|part| IoSlice::new(part.as_bytes()));
        // Nobody is left to be told that standard error is broken.
        let _: Result<usize, Errno> = writev(io::stderr(), &parts);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_plugin_comes_to_a_child_whose_figures_are_not_wanted() {
        IS_ALONE.store(true, Ordering::Release);
        forked();
        assert_eq!(ARRIVING.load(Ordering::Acquire), 0);
        let begun = Instant::now();
        wait_for_arrival();
        assert!(begun.elapsed() < PATIENCE);
    }
}
