//! The control socket of a foreign program, through which `memprof` reaches the plugin.
#![expect(unsafe_code, reason = "a handler of exit(3)")]

use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use memprof_own::{ForkGuard, ProcessOnce};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_IO;

use super::catch_panic;
use super::config::Control;
use super::log::ProgramLog;
use crate::control::{ControlSocket, ListenConfig};
use crate::program::HostProgram;
use crate::router::Router;

/// Id of the process that opened the socket. A forked child has another id.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The socket of the process, or in a forked child its parent's; null before and after. Only [`close_socket`] frees it,
/// because the program may exit while it is in use.
static SOCKET: AtomicPtr<ControlSocket> = AtomicPtr::new(ptr::null_mut());

/// Whether the exit handler is using the socket.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// Timeout of waiting for the exit handler.
const EXIT_HANDLER_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the control socket, logs its path, and registers the exit handler that removes its files. Does nothing if
/// `control` is [`Control::Off`], or if this process has opened a socket or is opening one. If the socket cannot be
/// opened, logs the error and returns it with the status `MEMPROF_IO`.
pub(super) fn open_socket(
    program: HostProgram,
    router: Arc<Router>,
    log: &ProgramLog,
    control: &Control,
) -> Result<(), Failure> {
    let path = match control {
        Control::Off => return Ok(()),
        Control::On => None,
        Control::Path(path) => Some(path.clone()),
    };
    let own = process::id();
    // In a forked child, the owner is its parent.
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
            log.write_line(Level::Info, &line);
            SOCKET.store(Box::into_raw(Box::new(socket)), Ordering::Release);
            register_exit_handler();
            Ok(())
        }
        Err(error) => {
            let line = format!("{error}; memprof cannot reach this program");
            log.write_line(Level::Error, &line);
            // The next request tries again.
            OWNER.store(0, Ordering::Release);
            Err(Failure::new(MEMPROF_IO, line))
        }
    }
}

/// Closes the socket of this process, after the pending replies were sent. Waits at most a second for an exit handler
/// that uses the socket. If the handler still uses it then, the socket's memory is leaked.
pub(super) fn close_socket() {
    // `SeqCst`, as in the exit handler: either that handler finds null, or this function sees that it runs.
    let socket = SOCKET.swap(ptr::null_mut(), Ordering::SeqCst);
    // SAFETY: null, or leaked by `open_socket` and freed only below.
    if let Some(open) = unsafe { socket.as_ref() } {
        open.close();
        // The exit handler only removes files, so it usually ends in a moment. It never ends if a signal handler
        // interrupts its thread for ever.
        let start = Instant::now();
        while IS_EXITING.load(Ordering::SeqCst) && start.elapsed() < EXIT_HANDLER_TIMEOUT {
            thread::yield_now();
        }
        if !IS_EXITING.load(Ordering::SeqCst) {
            // SAFETY: leaked by `open_socket`; an exit handler that starts from now on finds null.
            drop(unsafe { Box::from_raw(socket) });
        }
    }
    OWNER.store(0, Ordering::Release);
}

/// Returns whether this process has opened a socket and not closed it. False in a forked child, where the socket is its
/// parent's.
pub(super) fn is_socket_open() -> bool {
    OWNER.load(Ordering::Acquire) == process::id() && socket().is_some()
}

/// Registers the exit handler that removes the socket's files, once in a process.
fn register_exit_handler() {
    static REGISTERED: ProcessOnce = ProcessOnce::new();
    REGISTERED.call(|| {
        // If the handler cannot be registered, the files stay until the next host of this user removes them. No fork
        // may happen meanwhile: atexit(3) holds the C library's lock of its list of handlers, which is not released in
        // a forked child, and exit(3) would wait for it there.
        let _no_fork = ForkGuard::acquire();
        // SAFETY: atexit(3): the library that holds the handler is never unloaded.
        unsafe { libc::atexit(remove_socket_files_at_exit) };
    });
}

/// Exit handler: removes the files of the process's socket, if there is one.
extern "C" fn remove_socket_files_at_exit() {
    IS_EXITING.store(true, Ordering::SeqCst);
    catch_panic((), || socket().map_or((), ControlSocket::remove_files));
    IS_EXITING.store(false, Ordering::SeqCst);
}

/// Returns the socket of the process, or in a forked child its parent's. `None` before [`open_socket`] and after
/// [`close_socket`].
fn socket() -> Option<&'static ControlSocket> {
    // SAFETY: null, or leaked by `open_socket`; `close_socket` frees it only if no exit handler uses it.
    unsafe { SOCKET.load(Ordering::SeqCst).as_ref() }
}
