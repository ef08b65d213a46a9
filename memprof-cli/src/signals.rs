//! SIGPIPE, as this program's caller set it: services are started with it ignored (systemd.exec(5), `IgnoreSIGPIPE=`),
//! and a server that relies on that must not die because memprof started it.
#![expect(
    unsafe_code,
    reason = "sigaction(2) before the runtime's own, and signal(2) in a forked child"
)]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs before Rust's runtime, which ignores the signal (`std`'s `sys::pal::unix::init`), so that no later reading
/// tells the caller's disposition.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_AT_START: extern "C" fn() = read;

static IS_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn read() {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) with no new action only writes the old one to a place of its size.
    let failed = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) };
    if failed == 0 {
        // SAFETY: sigaction(2) succeeded, so it has written the whole struct.
        let action = unsafe { action.assume_init() };
        IS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// Lets the program that `command` starts find SIGPIPE as memprof found it; `Command` would reset it to its default.
pub(crate) fn inherit(command: &mut Command) -> &mut Command {
    if IS_IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: signal(2) is async-signal-safe (signal-safety(7)), and SIG_IGN runs no code.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure does nothing but one async-signal-safe call.
        unsafe { command.pre_exec(ignore) };
    }
    command
}
