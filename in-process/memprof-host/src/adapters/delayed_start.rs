//! Delayed start in programs whose config has no plugins: they are configured by environment variables and get a
//! control socket.
//!
//! A thread waits for 100 ms, and longer on a busy machine, before it creates the plugin and opens the socket: a process
//! that ends or executes another program sooner is not touched, unless it sends a message. If the environment names a
//! config file of the plugin, an exit in that time waits until the plugin is created: it may dump at exit, or the config
//! may be wrong.
//!
//! - A forked child closes its parent's socket at once, and opens its own by the same rule. A child of `vfork`, `_Fork`
//!   or a bare `clone` is not noticed until it executes a program.
//! - A daemon that closes all descriptors loses the socket, which is opened again at the next connection; a reused
//!   descriptor number is never mistaken for the socket.
#![expect(unsafe_code, reason = "handlers of fork(2) and exit(3)")]

mod start_settings;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use log::{Level, LevelFilter};
use memprof_own::{ForkGuard, Privileges, ThreadSpec};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::config::Settings;
use super::host_symbols::MissingSymbol;
use super::instance::{self, AdapterInstance};
use super::log::ProgramLog;
use super::one_time_event::OneTimeEvent;
use super::startup_delay::FirstDelay;
use super::stderr_log::LogDestination;
use super::{catch_panic, environment, library_copies, own_sockets};
use crate::socket_dir::own_default_dir;
use start_settings::{START_SETTINGS, StartSettings};

/// The thread that starts the plugin after a delay. A fork handler creates it too, so it must not need an allocation.
static DELAYED_START_THREAD: ThreadSpec = ThreadSpec {
    name: c"memprof-start",
    work: |privileges| {
        let delay = FirstDelay::wait(&EXIT_STARTED);
        leave_descriptor_table_if_requested();
        delay.wait_for_busy_program(&EXIT_STARTED);
        catch_panic((), || start_plugin(privileges));
        START_FINISHED.set();
    },
};

/// The thread that starts the plugin of a program whose measurements are wanted, however short it runs.
static IMMEDIATE_START_THREAD: ThreadSpec = ThreadSpec {
    name: c"memprof-start",
    work: |privileges| {
        // The constructor that starts sampling may run after the one that created this thread.
        SAMPLING_STARTED.wait(START_TIMEOUT);
        leave_descriptor_table_if_requested();
        catch_panic((), || start_plugin(privileges));
        START_FINISHED.set();
    },
};

/// Timeout of an exit that waits for the start of the plugin.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether forked children get no plugin, because only the program's measurements are wanted. Otherwise a child's
/// plugin would depend on whether the plugin is created before or after the fork.
static EXCLUDES_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Whether the threads of the plugin and of the control socket get a descriptor table of their own.
static USES_OWN_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

static SAMPLING_STARTED: OneTimeEvent = OneTimeEvent::new();
/// The program has called exit(3).
static EXIT_STARTED: OneTimeEvent = OneTimeEvent::new();
static START_FINISHED: OneTimeEvent = OneTimeEvent::new();

/// Id of the process that last created a start thread, or tried to.
static STARTING_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Creates the thread that starts the plugin and opens the control socket after a delay of at least 100 ms, once in a
/// process. The config comes from the environment. An exit of the program waits for the start only if the environment
/// names a config file.
pub(super) fn start_plugin_delayed(entry: &'static memprof_plugin_entry_t) {
    let _settings = ensure_settings_and_thread(
        entry,
        &DELAYED_START_THREAD,
        LogDestination::startup_stderr(),
        environment::read_settings,
    );
    if environment::has_config() {
        register_exit_handler();
    }
}

/// Creates the thread that starts the plugin and opens the control socket after a delay, once in a process. For a
/// program that passes its own settings and redirects its standard error to its log. An exit of the program does not
/// wait for the start.
#[cfg(feature = "adapter-postgres")]
pub(super) fn start_plugin_delayed_with_settings(
    entry: &'static memprof_plugin_entry_t,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) {
    let _settings = ensure_settings_and_thread(
        entry,
        &DELAYED_START_THREAD,
        LogDestination::Redirected,
        settings,
    );
}

/// Creates the thread that starts the plugin as soon as sampling has started or is impossible. Makes an exit of the
/// program wait for the plugin, at most 5 s. Forked children get no plugin.
pub(super) fn start_plugin_after_sampling_start(entry: &'static memprof_plugin_entry_t) {
    EXCLUDES_CHILDREN.store(true, Ordering::Release);
    let _settings = ensure_settings_and_thread(
        entry,
        &IMMEDIATE_START_THREAD,
        LogDestination::startup_stderr(),
        environment::read_settings,
    );
    register_exit_handler();
}

/// Registers the exit handler that waits for the start of the plugin, at most 5 s. In a forked child the handler does
/// not wait.
fn register_exit_handler() {
    // If the handler cannot be registered, an exit does not wait.
    // No fork may happen meanwhile: atexit(3) holds the C library's lock of its list of handlers, which is not released
    // in a forked child, and exit(3) would wait for it there.
    let _no_fork = ForkGuard::acquire();
    // SAFETY: atexit(3): the handler is in this library, which is never unloaded. Handlers that the plugin registers
    // later run before this one, or after it if the exit has started by then.
    unsafe { libc::atexit(start_and_wait_at_exit) };
}

/// Reports that sampling has started or is impossible. A start thread that waits for this then creates the plugin.
#[cfg(feature = "adapter-preload")]
#[doc(hidden)]
pub fn end_wait_for_sampling() {
    SAMPLING_STARTED.set();
}

/// Exit handler: ends the delay before the start of the plugin, and waits at most 5 s until the plugin is created. Does
/// nothing in a forked child.
extern "C" fn start_and_wait_at_exit() {
    // The fork handler sets this event in a child: it has no start thread for which its exit could wait.
    if START_FINISHED.has_happened() {
        return;
    }
    EXIT_STARTED.set();
    START_FINISHED.wait(START_TIMEOUT);
}

/// Creates the plugin at once, and the thread that later opens the control socket, unless they exist. Called by the
/// entry points that the program uses to send messages. A failure is logged, and becomes the reply to every message.
pub(super) fn ensure_instance(entry: &'static memprof_plugin_entry_t) {
    catch_panic((), || {
        let start = ensure_settings_and_thread(
            entry,
            &DELAYED_START_THREAD,
            LogDestination::startup_stderr(),
            environment::read_settings,
        );
        let _instance = get_or_create_instance(start);
    });
}

/// Returns the plugin's instance, and creates it if there is none. If an earlier creation of the plugin failed, tries
/// again, provided that the config has changed since.
fn get_or_create_instance(start: &'static StartSettings) -> &'static AdapterInstance {
    let adapter = start.adapter();
    let (instance, _) =
        instance::get_or_create_instance(start.entry, &adapter, || start.settings.clone());
    instance::recreate_if_config_changed(instance, &adapter, environment::reread_settings)
}

/// Sends a message and returns its reply as text. Call [`ensure_instance`] first. If the message failed, the error is
/// the reply's text; otherwise it says that the plugin is not loaded or panicked.
pub(super) fn send_message(message: &[u8]) -> Result<String, String> {
    with_instance(|instance| instance.send_and_render(message).into_result())
}

/// Sends a message and returns its reply as JSON. Call [`ensure_instance`] first. If the message failed, the error is
/// the reply's text; otherwise it says that the plugin is not loaded or panicked.
pub(super) fn send_message_for_json(message: &[u8]) -> Result<String, String> {
    with_instance(|instance| instance.send_message_for_json(message))
}

/// Sends a message to all processes of the server and returns their replies as JSON. When `should_stop` returns true,
/// the remaining replies are not waited for. Fails only if the plugin is not loaded or panicked.
#[cfg(feature = "adapter-postgres")]
pub(super) fn send_to_server_processes(
    message: &[u8],
    should_stop: impl Fn() -> bool,
) -> Result<String, String> {
    with_instance(|instance| Ok(instance.send_to_server_processes(message, should_stop)))
}

/// Returns whether all users may send a message, to an adapter that cannot distinguish users. Creates the plugin's
/// instance if there is none. False before the settings were read.
#[cfg(feature = "adapter-mariadb")]
pub(super) fn is_allowed_for_all_users(message: &str) -> bool {
    let start = START_SETTINGS.get();
    start.is_some_and(|start| get_or_create_instance(start).is_allowed_for_all_users(message))
}

/// Calls `send` with the plugin's instance, which is created if there is none, and returns its result. Fails if no
/// settings were read yet, or if `send` panics.
fn with_instance(
    send: impl FnOnce(&AdapterInstance) -> Result<String, String>,
) -> Result<String, String> {
    let panicked = Err("the plugin panicked".to_owned());
    catch_panic(panicked, || match START_SETTINGS.get() {
        Some(start) => send(get_or_create_instance(start)),
        None => Err("the plugin is not loaded".to_owned()),
    })
}

/// Logs, as an error, that the program lacks a function that an entry point needs. Logs nothing before the settings
/// were read.
pub(super) fn log_missing_symbol(missing: MissingSymbol) {
    if let Some(start) = START_SETTINGS.get() {
        start.log.write_line(Level::Error, &missing.to_string());
    }
}

/// Reads the settings at the first call, by `settings`, and returns those of the first call from then on. Registers the
/// fork handler, and creates the start thread as `thread` describes it, each once in a process. `stderr` is the
/// destination of log lines.
fn ensure_settings_and_thread(
    entry: &'static memprof_plugin_entry_t,
    thread: &'static ThreadSpec,
    stderr: LogDestination,
    settings: impl FnOnce() -> Result<Settings, Failure>,
) -> &'static StartSettings {
    let start = START_SETTINGS.get().unwrap_or_else(|| {
        let level = environment::log_level();
        // An invalid level becomes the error of the settings, which is logged.
        let log = ProgramLog {
            level: *level.as_ref().unwrap_or(&LevelFilter::Warn),
            sink: write_log_line,
        };
        START_SETTINGS.get_or_set(StartSettings {
            entry,
            log,
            settings: level.and_then(|_| settings()),
            stderr,
        })
    });
    register_fork_handler();
    spawn_start_thread_once(thread);
    start
}

/// Registers the fork handler, once in a process, and keeps the library loaded. If another thread is registering the
/// handler, does not wait for it, because the caller may hold the loader's lock.
fn register_fork_handler() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Ordering::AcqRel) {
        memprof_plugin_abi::stay_loaded();
        ForkGuard::register_fork_handlers();
        // If the handler cannot be registered, forked children get no plugin.
        // SAFETY: pthread_atfork(3): the handler is in this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    }
}

/// Fork handler: creates a start thread in the child, which starts the plugin after a delay, unless children are
/// excluded.
extern "C" fn after_fork_in_child() {
    // An exit must not wait, because the start thread exists only in the parent.
    START_FINISHED.set();
    if !EXCLUDES_CHILDREN.load(Ordering::Acquire) {
        catch_panic((), || spawn_start_thread_once(&DELAYED_START_THREAD));
    }
}

/// Requests that the threads of the plugin and of the control socket get a descriptor table of their own, apart from
/// the program's. The plugin must need no descriptor of the program on these threads, and pass none of theirs to
/// threads of the program. Call it in a constructor of the library, before the start thread runs.
#[cfg(feature = "adapter-preload")]
#[doc(hidden)]
pub fn use_own_descriptors() {
    USES_OWN_DESCRIPTORS.store(true, Ordering::Release);
}

/// Gives the calling thread, a start thread, its own descriptor table, if [`use_own_descriptors`] was called.
fn leave_descriptor_table_if_requested() {
    if USES_OWN_DESCRIPTORS.load(Ordering::Acquire) {
        memprof_own::leave_program_descriptor_table();
    }
}

/// Creates the start thread, unless this process has created one.
fn spawn_start_thread_once(thread: &'static ThreadSpec) {
    let own = std::process::id();
    if STARTING_PROCESS.swap(own, Ordering::AcqRel) != own {
        spawn_start_thread(thread);
    }
}

/// Creates the start thread. A failure is logged, and an exit does not wait then.
fn spawn_start_thread(thread: &'static ThreadSpec) {
    if let Err(error) = memprof_own::spawn_static(thread) {
        // An exit must not wait for a thread that was not created.
        START_FINISHED.set();
        // This allocates nothing: it may run in a fork handler, or be called because there is no memory.
        let is_logged = |start: &&StartSettings| start.log.level >= LevelFilter::Error;
        if let Some(start) = START_SETTINGS.get().filter(is_logged) {
            let text = match error.raw_os_error() {
                Some(libc::ENOMEM) => "memprof cannot reach this program: no thread (ENOMEM)",
                Some(libc::EAGAIN) => "memprof cannot reach this program: no thread (EAGAIN)",
                _ => "memprof cannot reach this program: no thread",
            };
            (start.log.sink)(Level::Error, text);
        }
    }
}

/// Creates the plugin and opens the control socket. Does neither if this process already serves the plugin at a socket.
/// Opens no socket if another copy of the library opens one while the plugin is being created. Runs on the start
/// thread.
fn start_plugin(privileges: &mut Privileges) {
    privileges.limit_to_main_thread();
    // Before anything is allocated, so that an existing plugin does not sample this thread.
    if let Some(instance) = instance::instance() {
        instance.report_memprof_thread();
    }
    let Some(start) = START_SETTINGS.get() else {
        // Never: `ensure_settings_and_thread` stores the settings before it creates this thread.
        return;
    };
    if is_plugin_served_already(start) {
        return;
    }
    let instance = get_or_create_instance(start);
    instance.report_memprof_thread();
    let _guard = library_copies::lock_across_copies(start.entry);
    // Another copy of this library may have opened a socket in the meantime.
    if is_plugin_served_already(start) {
        return;
    }
    // An error was logged; the program runs without the socket.
    let _result = instance.open_control_socket(&start.adapter(), start.control());
}

/// Returns whether this process already serves the plugin at a control socket: the program is a host itself, or another
/// copy of this library has opened a socket. If so, logs a line. The socket of another plugin does not count.
fn is_plugin_served_already(start: &StartSettings) -> bool {
    let is_served = own_sockets::is_plugin_served_by_this_process(
        &own_default_dir(),
        &instance::plugin_id(start.entry),
    );
    if is_served {
        let line = "this program is a memprof host itself";
        start.log.write_line(Level::Info, line);
    }
    is_served
}

/// Writes a log line, with its level, to standard error. Drops it if the program has replaced standard error.
fn write_log_line(level: Level, text: &str) {
    let level = match level {
        Level::Error => "error: ",
        Level::Warn => "warn: ",
        Level::Info => "info: ",
        Level::Debug => "debug: ",
        Level::Trace => "trace: ",
    };
    print_line(level, text);
}

/// Writes a reply to standard error, for programs that cannot show it in any other way. Drops it if the program has
/// replaced standard error.
pub(super) fn print_reply(reply: &str) {
    print_line("", reply);
}

/// Writes a line to standard error, unless the program has replaced it. `level` precedes the text, and may be empty.
/// Drops the line before the settings were read.
fn print_line(level: &str, text: &str) {
    if let Some(start) = START_SETTINGS.get() {
        start.stderr.write_line(level, text);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn excluded_child_gets_no_plugin() {
        EXCLUDES_CHILDREN.store(true, Ordering::Release);
        after_fork_in_child();
        assert_eq!(STARTING_PROCESS.load(Ordering::Acquire), 0);
        let start = Instant::now();
        start_and_wait_at_exit();
        assert!(start.elapsed() < START_TIMEOUT);
    }
}
