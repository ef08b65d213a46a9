//! SIGPIPE and the signal mask, as this program's caller set them: services are started with SIGPIPE ignored
//! (systemd.exec(5), `IgnoreSIGPIPE=`), and a server that relies on that must not die because memprof started it; nor may
//! it have those blocked that memprof waits for.
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

/// Runs before Rust's runtime, which ignores the signal (`std`'s `sys::pal::unix::init`), so that no later reading
/// tells the caller's disposition.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_AT_START: extern "C" fn() = read;

static IS_IGNORED: AtomicBool = AtomicBool::new(false);
static MASK: OnceLock<libc::sigset_t> = OnceLock::new();

extern "C" fn read() {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) with no new action only writes the old one to a place of its size.
    let failed = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) };
    if failed == 0 {
        // SAFETY: sigaction(2) succeeded, so it has written the whole struct.
        let action = unsafe { action.assume_init() };
        IS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigprocmask(2) with no new mask only writes the old one to a place of its size.
    let failed = unsafe { libc::sigprocmask(libc::SIG_SETMASK, ptr::null(), mask.as_mut_ptr()) };
    if failed == 0 {
        // SAFETY: sigprocmask(2) succeeded, so it has written the whole set.
        let _first = MASK.set(unsafe { mask.assume_init() });
    }
}

/// Lets the program that `command` starts find SIGPIPE and the signal mask as memprof found them; `Command` would reset
/// the one to its default, and pass on what memprof blocks.
pub(crate) fn inherit(command: &mut Command) -> &mut Command {
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
    // SAFETY: the closure does nothing but async-signal-safe calls.
    unsafe { command.pre_exec(restore) }
}
