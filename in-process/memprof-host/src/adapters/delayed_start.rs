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
use memprof_own::{ForkGuard, LockFreeOnce, Privileges, ThreadSpec};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::fstat;
use rustix::io::{Errno, writev};

use super::config::{Control, Settings};
use super::event::OneTimeEvent;
use super::host_symbols::MissingSymbol;
use super::instance::{self, Adapter, AdapterInstance};
use super::log::ProgramLog;
use super::{catch_panic, environment, library_copies};
use crate::socket_dir::own_default_dir;

/// How long a process is left alone.
const REST: Duration = Duration::from_millis(100);

/// Made in a handler of fork(2) too, so it must not need an allocation.
static ARRIVAL: ThreadSpec = ThreadSpec {
    name: c"memprof-start",
    work: |privileges| {
        EXITS.wait(REST);
        catch_panic((), || start_plugin(privileges));
        HAS_ARRIVED.set();
    },
};

/// Of a program whose figures are wanted, however short it is.
static ARRIVAL_AT_ONCE: ThreadSpec = ThreadSpec {
    name: c"memprof-start",
    work: |privileges| {
        // The constructor that begins to sample may come after the one that made this thread.
        SAMPLES.wait(PATIENCE);
        catch_panic((), || start_plugin(privileges));
        HAS_ARRIVED.set();
    },
};

/// How long an exit waits for a plugin that is being made.
const PATIENCE: Duration = Duration::from_secs(5);

/// Forked children get no plugin: only the figures of programs are wanted, and whether a child got them would depend
/// on which comes first, the plugin or the fork.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

static SAMPLES: OneTimeEvent = OneTimeEvent::new();
/// The program has called exit(3).
static EXITS: OneTimeEvent = OneTimeEvent::new();
static HAS_ARRIVED: OneTimeEvent = OneTimeEvent::new();

/// What the environment said when the library was loaded or first used. It is not read again, because the
/// program may change it at any time on another thread.
struct StartSettings {
    entry: &'static memprof_plugin_entry_t,
    log: ProgramLog,
    settings: Result<Settings, Failure>,
    stderr: LogDestination,
}

/// Where log lines go: never to a file that the program has opened under standard error's number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogDestination {
    /// The one of the start, by device and inode, where there was one.
    StartupStderr(Option<(u64, u64)>),
    /// Whichever it is: the program puts nothing there but another log.
    #[cfg(feature = "adapter-postgres")]
    Redirected,
}

static START: LockFreeOnce<StartSettings> = LockFreeOnce::new();

/// The process that has made its thread, or tried to.
static ARRIVING: AtomicU32 = AtomicU32::new(0);

/// Begins to wait for the moment to open the socket, once in a process.
pub(super) fn start_delayed(entry: &'static memprof_plugin_entry_t) {
    let _begun = start(entry, &ARRIVAL, unchanged(), environment::settings);
    if environment::has_config() {
        wait_at_exit();
    }
}

/// The same in a program that has settings of its own, and replaces its standard error by its log.
#[cfg(feature = "adapter-postgres")]
pub(super) fn start_delayed_with(
    entry: &'static memprof_plugin_entry_t,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) {
    let _begun = start(entry, &ARRIVAL, LogDestination::Redirected, settings);
}

/// Makes the plugin now, on a thread of its own, for which an exit of the program waits.
pub(super) fn start_now(entry: &'static memprof_plugin_entry_t) {
    IS_ALONE.store(true, Ordering::Release);
    let _begun = start(entry, &ARRIVAL_AT_ONCE, unchanged(), environment::settings);
    wait_at_exit();
}

/// Has an exit wait for the plugin. Children that were forked do not wait.
fn wait_at_exit() {
    // The C library does not free the lock of its list in a forked child, which exit(3) takes.
    let _no_fork = ForkGuard::acquire();
    // SAFETY: atexit(3): this library is never unloaded. What the plugin registers later is called before,
    // or after it where the exit has begun by then.
    unsafe { libc::atexit(wait_for_start) };
}

/// The program is sampled by now, or cannot be: a plugin that comes at once may.
#[cfg(feature = "adapter-preload")]
#[doc(hidden)]
pub fn set_sampling_started() {
    SAMPLES.set();
}

extern "C" fn wait_for_start() {
    // A child's thread stays where it is: its exit does not wait, so it would make the plugin in a process that ends.
    if HAS_ARRIVED.has_happened() {
        return;
    }
    EXITS.set();
    HAS_ARRIVED.wait(PATIENCE);
}

/// Makes the plugin, in an entry point that the program called because it wants to send messages.
pub(super) fn ensure_instance(entry: &'static memprof_plugin_entry_t) {
    catch_panic((), || {
        let start = start(entry, &ARRIVAL, unchanged(), environment::settings);
        let _made = instance(start);
    });
}

fn instance(start: &'static StartSettings) -> &'static AdapterInstance {
    instance::get_or_create(start.entry, &start.adapter(), || start.settings.clone()).0
}

/// The reply to a message as text, after [`ensure_instance`].
///
/// # Errors
/// Why not; also a panic is a reason.
pub(super) fn send(message: &[u8]) -> Result<String, String> {
    answer(|instance| instance.rendered_reply(message).into_result())
}

/// The reply to a message as JSON, after [`ensure_instance`].
///
/// # Errors
/// As for [`send`].
pub(super) fn call(message: &[u8]) -> Result<String, String> {
    answer(|instance| instance.json(message))
}

/// The same for all processes of the server: JSON. `gave_up` ends the wait for those that do not answer.
#[cfg(feature = "adapter-postgres")]
pub(super) fn send_to_server_processes(
    message: &[u8],
    gave_up: impl Fn() -> bool,
) -> Result<String, String> {
    answer(|instance| Ok(instance.reply_for_all(message, gave_up)))
}

/// Whether the config lets everybody send a message, also where nobody tells them apart.
#[cfg(feature = "adapter-mariadb")]
pub(super) fn allows(message: &str) -> bool {
    let settings = START.get().and_then(|start| start.settings.as_ref().ok());
    settings.is_some_and(|settings| settings.allow.iter().any(|allowed| allowed == message))
}

fn answer(ask: impl FnOnce(&AdapterInstance) -> Result<String, String>) -> Result<String, String> {
    let panicked = Err("the plugin panicked".to_owned());
    catch_panic(panicked, || match START.get() {
        Some(start) => ask(instance(start)),
        None => Err("the plugin is not loaded".to_owned()),
    })
}

/// Logs why an entry point did nothing.
pub(super) fn refuse(missing: MissingSymbol) {
    if let Some(start) = START.get() {
        start.log.line(Level::Error, &missing.to_string());
    }
}

fn start(
    entry: &'static memprof_plugin_entry_t,
    arrival: &'static ThreadSpec,
    stderr: LogDestination,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) -> &'static StartSettings {
    let start = START.get().unwrap_or_else(|| {
        let level = environment::log_level();
        let log = ProgramLog {
            level: *level.as_ref().unwrap_or(&LevelFilter::Warn),
            sink: write,
        };
        let settings = level.and_then(|_| settings());
        START.get_or_set(StartSettings {
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
        ForkGuard::register_fork_handlers();
        // SAFETY: pthread_atfork(3): this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
}

extern "C" fn after_fork() {
    // The thread that an exit would wait for is the parent's.
    HAS_ARRIVED.set();
    if !IS_ALONE.load(Ordering::Acquire) {
        catch_panic((), || spawn_once(&ARRIVAL));
    }
}

fn spawn_once(arrival: &'static ThreadSpec) {
    let own = std::process::id();
    if ARRIVING.swap(own, Ordering::AcqRel) != own {
        spawn(arrival);
    }
}

/// Starts the thread that opens the socket.
fn spawn(arrival: &'static ThreadSpec) {
    if let Err(error) = memprof_own::spawn_static(arrival) {
        // No exit waits for what never comes.
        HAS_ARRIVED.set();
        // Allocates nothing: this may be a handler of fork(2), and memory may be what is missing.
        let logs = |start: &&StartSettings| start.log.level >= LevelFilter::Error;
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

fn start_plugin(privileges: &mut Privileges) {
    privileges.match_main_thread();
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
    let _sole = library_copies::lock_all_copies(start.entry);
    // Another copy of this library may have opened one meanwhile.
    if is_served(start) {
        return;
    }
    // What is wrong was logged; the program goes on without.
    let _logged = instance.open_control(&start.adapter(), start.control());
}

/// Whether this process has a control socket already.
fn is_served(start: &StartSettings) -> bool {
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

impl StartSettings {
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

fn unchanged() -> LogDestination {
    let stat = fstat(io::stderr()).ok();
    LogDestination::StartupStderr(stat.map(|stat| (stat.st_dev, stat.st_ino)))
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
pub(super) fn print_reply(reply: &str) {
    print("", reply);
}

fn print(level: &str, text: &str) {
    let is_log = |stderr| match stderr {
        LogDestination::StartupStderr(_) => stderr == unchanged(),
        #[cfg(feature = "adapter-postgres")]
        LogDestination::Redirected => true,
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
        after_fork();
        assert_eq!(ARRIVING.load(Ordering::Acquire), 0);
        let begun = Instant::now();
        wait_for_start();
        assert!(begun.elapsed() < PATIENCE);
    }
}
