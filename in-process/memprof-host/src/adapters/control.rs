//! The control socket of a foreign program, through which `memprof` reaches the plugin.
#![expect(unsafe_code, reason = "a handler of exit")]

use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
#[cfg(feature = "adapter-attached")]
use std::{
    thread,
    time::{Duration, Instant},
};

use log::Level;
use memprof_own::{ForkGuard, ProcessOnce};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_IO;

use super::config::Control;
use super::contain;
use super::log::ProgramLog;
use crate::control::{ControlSocket, ListenConfig};
use crate::program::HostProgram;
use crate::router::Router;

/// The process that opened its socket. A forked child has another number.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The socket of the process, or in a forked child its parent's; null before and after. Freed only by
/// [`close`]: a program may end while it is in use.
static SOCKET: AtomicPtr<ControlSocket> = AtomicPtr::new(ptr::null_mut());

/// Whether the exit uses the socket just now.
static EXITING: AtomicBool = AtomicBool::new(false);

#[cfg(feature = "adapter-attached")]
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// Opens the socket, once in a process.
///
/// # Errors
/// Why not, which was logged.
pub(super) fn open(
    program: HostProgram,
    router: Arc<Router>,
    log: &ProgramLog,
    control: &Control,
) -> Result<(), Failure> {
    let path = match control {
        Control::Off => return Ok(()),
        Control::On => None,
        Control::At(path) => Some(path.clone()),
    };
    let own = process::id();
    if OWNER.swap(own, Ordering::AcqRel) == own {
        return Ok(());
    }
    let listen = ListenConfig {
        path,
        name: program.name.to_owned(),
        version: program.version.to_owned(),
        allow_uids: Vec::new(),
        keeps_capabilities: false,
    };
    match ControlSocket::open(listen, router) {
        Ok(socket) => {
            let line = format!("control socket {}", socket.path().display());
            log.line(Level::Info, &line);
            SOCKET.store(Box::into_raw(Box::new(socket)), Ordering::Release);
            watch();
            Ok(())
        }
        Err(error) => {
            let line = format!("{error}; memprof cannot reach this program");
            log.line(Level::Error, &line);
            // Asked for again, it is tried again.
            OWNER.store(0, Ordering::Release);
            Err(Failure::new(MEMPROF_IO, line))
        }
    }
}

/// Closes the socket of this process, once each request that has come was answered.
#[cfg(feature = "adapter-attached")]
pub(super) fn close() {
    let socket = SOCKET.swap(ptr::null_mut(), Ordering::SeqCst);
    // SAFETY: null, or leaked by `open`.
    if let Some(open) = unsafe { socket.as_ref() } {
        open.close();
        // The exit removes files without waiting for anybody: a moment, or never again.
        let begun = Instant::now();
        while EXITING.load(Ordering::SeqCst) && begun.elapsed() < EXIT_PATIENCE {
            thread::yield_now();
        }
        if !EXITING.load(Ordering::SeqCst) {
            // SAFETY: leaked by `open`; whoever exits from now on finds null.
            drop(unsafe { Box::from_raw(socket) });
        }
    }
    OWNER.store(0, Ordering::Release);
}

/// Whether the socket of this process is open.
#[cfg(feature = "adapter-attached")]
pub(super) fn is_open() -> bool {
    OWNER.load(Ordering::Acquire) == process::id() && socket().is_some()
}

/// Ends the socket's files with the process.
fn watch() {
    static WATCHED: ProcessOnce = ProcessOnce::new();
    WATCHED.call(|| {
        // The C library does not free the lock of its list in a forked child, which exit(3) takes.
        let _no_fork = ForkGuard::acquire();
        // SAFETY: atexit(3): the library that holds the handler is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    EXITING.store(true, Ordering::SeqCst);
    contain((), || socket().map_or((), ControlSocket::remove_files));
    EXITING.store(false, Ordering::SeqCst);
}

fn socket() -> Option<&'static ControlSocket> {
    // SAFETY: null, or leaked by `open`.
    unsafe { SOCKET.load(Ordering::SeqCst).as_ref() }
}
