//! Any program, by `LD_PRELOAD`: nothing in it changes, and it gets a control socket.
//!
//! The library does nothing unless `MEMPROF_RUN=1` is in the environment (`memprof run` sets it),
//! so that a program which merely loads it is left alone. Then a thread waits for 100 ms before
//! it makes the plugin and opens the socket: a process that ends or executes another program
//! sooner is not touched.
//!
//! - A forked child closes its parent's socket at once, and opens one of its own by the same
//!   rule. An executed program inherits the environment, so it does the same.
//! - A daemon that closes all descriptors loses the socket and opens it again at the next
//!   connection; it never takes a descriptor of the daemon's for its own.
//! - Limits: a process has a thread of ours from its start, so `unshare(CLONE_NEWUSER)` and
//!   `setns` into a user namespace fail as they do in any program with threads. A seccomp filter
//!   that the program puts on all its threads holds for ours. Children made by `vfork`, `_Fork`
//!   or a bare `clone` are not noticed until they execute a program.
#![expect(unsafe_code, reason = "what the loader calls, and handlers of fork")]

use std::io::{self, IoSlice};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use log::{Level, LevelFilter};
use memprof_own::{Plan, Privileges};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_INVALID_ARGUMENT, memprof_plugin_entry_t};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::fstat;
use rustix::io::{Errno, writev};

use super::config::{self, Control, Settings};
use super::contain;
use super::instance::{self, Adapter};
use super::log::Lines;
use crate::socket_dir::own_default_dir;

const RUN: &str = "MEMPROF_RUN";
const ACTIVE: &str = "MEMPROF_ACTIVE";
const LG_SAMPLE: &str = "MEMPROF_LG_SAMPLE";

/// How long a process is left alone.
const REST: Duration = Duration::from_millis(100);

/// Made in a handler of fork(2) too, so it must not need an allocation.
static ARRIVAL: Plan = Plan {
    name: c"memprof-preload",
    work: |privileges| contain((), || arrive(privileges)),
};

/// What the environment said when the program started. It is not read again, because the
/// program may change it at any time on another thread.
struct Start {
    entry: &'static memprof_plugin_entry_t,
    adapter: Adapter,
    settings: Result<Settings, Failure>,
    /// Device and inode of standard error: the program may open other files under its number.
    stderr: Option<(u64, u64)>,
}

static START: OnceLock<Start> = OnceLock::new();

/// Runs when the library is loaded.
#[doc(hidden)]
pub fn loaded(entry: &'static memprof_plugin_entry_t) {
    contain((), || {
        let marked = environment(RUN).is_some_and(|marker| marker == "1");
        if !marked || is_secure_execution() {
            return;
        }
        let level = level();
        let log = Box::leak(Box::new(Lines {
            level: *level.as_ref().unwrap_or(&LevelFilter::Warn),
            sink: write,
        }));
        let start = Start {
            entry,
            adapter: Adapter {
                log,
                control: Control::On,
                is_own_thread: true,
            },
            settings: level.and_then(|_| settings()),
            stderr: stderr(),
        };
        if START.set(start).is_ok() {
            memprof_plugin_abi::stay_loaded();
            // SAFETY: pthread_atfork(3): this library is never unloaded.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            begin();
        }
    });
}

/// Whether the program is sampled from its start on, and the log2 of the interval where it is named.
/// Asked while the library is loaded.
#[doc(hidden)]
pub fn is_active_at_once() -> Option<Option<u64>> {
    let is_on = |name, value| environment(name).is_some_and(|found| found == value);
    let is_asked = is_on(RUN, "1") && is_on(ACTIVE, "on") && !is_secure_execution();
    is_asked.then(|| environment(LG_SAMPLE)?.parse().ok())
}

/// The words of the environment, as other programs have them in their configs.
fn settings() -> Result<Settings, Failure> {
    let named = [
        ("config", "MEMPROF_CONFIG"),
        ("dump_dir", "MEMPROF_DUMP_DIR"),
        ("activate_at_start", ACTIVE),
        ("lg_sample", LG_SAMPLE),
    ];
    let values = named.map(|(key, name)| Some((key, environment(name)?)));
    let words = values.iter().flatten();
    config::parse(words.map(|(key, value)| (*key, value.as_str())))
}

/// The least important lines that go to standard error.
fn level() -> Result<LevelFilter, Failure> {
    environment("MEMPROF_LOG").map_or(Ok(LevelFilter::Warn), |word| {
        word.parse().map_err(|_| {
            let message =
                format!("MEMPROF_LOG={word} is none of off, error, warn, info, debug, trace");
            Failure::new(MEMPROF_INVALID_ARGUMENT, message)
        })
    })
}

/// A variable of the environment. It is read while the loader loads this library, before the
/// program can change it.
fn environment(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}

/// Whether the process runs with more rights than who started it: its environment is then
/// somebody else's.
fn is_secure_execution() -> bool {
    // SAFETY: getauxval(3) reads a constant of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

extern "C" fn forked() {
    contain((), begin);
}

/// Starts the thread that opens the socket.
fn begin() {
    if let Err(error) = memprof_own::spawn_plan(&ARRIVAL) {
        // Allocates nothing: this may be a handler of fork(2), and memory may be what is missing.
        if let Some(start) = START
            .get()
            .filter(|start| start.adapter.log.level >= LevelFilter::Error)
        {
            let text = match error.raw_os_error() {
                Some(libc::ENOMEM) => "memprof cannot reach this program: no thread (ENOMEM)",
                Some(libc::EAGAIN) => "memprof cannot reach this program: no thread (EAGAIN)",
                _ => "memprof cannot reach this program: no thread",
            };
            (start.adapter.log.sink)(Level::Error, text);
        }
    }
}

fn arrive(privileges: &mut Privileges) {
    thread::sleep(REST);
    privileges.follow();
    if let Some(instance) = instance::instance() {
        instance.enter_thread();
    }
    let Some(start) = START.get() else {
        return;
    };
    if is_host() {
        start
            .adapter
            .log
            .line(Level::Info, "this program is a memprof host itself");
        return;
    }
    match instance::instance() {
        // What is wrong was logged; the program goes on without.
        Some(instance) => drop(instance.open_control(&start.adapter, start.control())),
        None => drop(instance::settle(
            start.entry,
            &start.adapter,
            start.settings.clone(),
        )),
    }
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
    fn control(&self) -> Option<&Control> {
        self.settings.as_ref().ok()?.control.as_ref()
    }
}

fn stderr() -> Option<(u64, u64)> {
    let stat = fstat(io::stderr()).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Writes to standard error, as long as it is the one that the program was started with.
fn write(level: Level, text: &str) {
    if START.get().is_some_and(|start| start.stderr == stderr()) {
        let level = match level {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        let parts =
            ["memprof: ", level, ": ", text, "\n"].map(|part| IoSlice::new(part.as_bytes()));
        // Nobody is left to be told that standard error is broken.
        let _: Result<usize, Errno> = writev(io::stderr(), &parts);
    }
}
