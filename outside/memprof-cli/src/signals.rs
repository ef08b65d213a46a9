//! Passes SIGPIPE's disposition and the signal mask of this program's caller on to programs that memprof starts.
//! Services are started with SIGPIPE ignored (systemd.exec(5), `IgnoreSIGPIPE=`), and a server that relies on that
//! must not die because memprof started it; nor may it have the signals blocked that memprof waits for.
#![expect(
    unsafe_code,
    reason = "sigaction(2) before the runtime's own, and signal(2) in a forked child"
)]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs before Rust's runtime, which ignores SIGPIPE (`std`'s `sys::pal::unix::init`), so that the caller's
/// disposition could not be read later.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_AT_START: extern "C" fn() = record_caller_signals;

/// Whether the caller ignored SIGPIPE.
static IS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Signal mask of the caller.
static MASK: OnceLock<libc::sigset_t> = OnceLock::new();

/// Records SIGPIPE's disposition and the signal mask as this program's caller set them.
extern "C" fn record_caller_signals() {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) without a new action only writes the old one, to a buffer of its size.
    let failed = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) };
    if failed == 0 {
        // SAFETY: sigaction(2) succeeded, so it has written the whole struct.
        let action = unsafe { action.assume_init() };
        IS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigprocmask(2) without a new mask only writes the old one, to a buffer of its size.
    let failed = unsafe { libc::sigprocmask(libc::SIG_SETMASK, ptr::null(), mask.as_mut_ptr()) };
    if failed == 0 {
        // This runs once, so the cell is empty.
        // SAFETY: sigprocmask(2) succeeded, so it has written the whole set.
        let _first = MASK.set(unsafe { mask.assume_init() });
    }
}

/// Makes the program of `command` start with SIGPIPE's disposition and the signal mask of memprof's caller.
/// Otherwise `Command` would reset the former to its default, and pass on the mask of memprof.
pub(crate) fn inherit_caller_signals(command: &mut Command) -> &mut Command {
    let is_ignored = IS_IGNORED.load(Ordering::Relaxed);
    let mask = MASK.get().copied();
    let restore = move || {
        if is_ignored {
            // SAFETY: signal(2) is async-signal-safe (signal-safety(7)), and SIG_IGN runs no code.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        }
        if let Some(mask) = &mask {
            // SAFETY: sigprocmask(2) is async-signal-safe, and reads a set of its size.
            unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
        }
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe calls, as code between fork(2) and execve(2) must.
    unsafe { command.pre_exec(restore) }
}
