//! The control socket of a foreign program, through which `memprof` reaches the plugin.
#![expect(unsafe_code, reason = "a handler of exit")]

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Once};

use log::Level;

use super::config::Control;
use super::contain;
use super::log::Lines;
use crate::control::{ControlSocket, Listen};
use crate::program::Program;
use crate::router::Router;

/// The process that opened its socket. A forked child has another number.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The socket of the process, or in a forked child its parent's. Never freed: a program may end
/// while it is in use.
static SOCKET: AtomicPtr<ControlSocket> = AtomicPtr::new(ptr::null_mut());

/// Opens the socket, once in a process.
pub(super) fn open(program: Program, router: Arc<Router>, log: &Lines, control: &Control) {
    let path = match control {
        Control::Off => return,
        Control::On => None,
        Control::At(path) => Some(path.clone()),
    };
    let own = process::id();
    if OWNER.swap(own, Ordering::AcqRel) == own {
        return;
    }
    let listen = Listen {
        path,
        name: program.name.to_owned(),
        version: program.version.to_owned(),
        allow_uids: Vec::new(),
    };
    match ControlSocket::open(listen, router) {
        Ok(socket) => {
            let line = format!("control socket {}", socket.path().display());
            log.line(Level::Info, &line);
            SOCKET.store(Box::into_raw(Box::new(socket)), Ordering::Release);
            watch();
        }
        Err(error) => {
            let line = format!("{error}; memprof cannot reach this program");
            log.line(Level::Error, &line);
        }
    }
}

/// Ends the socket's files with the process.
fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: atexit(3): the library that holds the handler is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    contain((), || socket().map_or((), ControlSocket::remove_files));
}

fn socket() -> Option<&'static ControlSocket> {
    // SAFETY: null, or leaked by `open`.
    unsafe { SOCKET.load(Ordering::Acquire).as_ref() }
}
