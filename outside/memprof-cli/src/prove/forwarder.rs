//! Signals that memprof gets while it runs a command, passed on to the command until it exits.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Context;
use memprof_ptrace::pidfd::PidFd;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::command_group::CommandGroup;
use crate::interrupts::{self, signal_exit_code};
use crate::output;

/// A thread that receives SIGINT, SIGTERM and SIGHUP for a [`Recipient`].
#[derive(Debug)]
pub(super) struct SignalForwarder(Arc<Mutex<Recipient>>);

/// Process that a signal is forwarded to.
#[derive(Debug)]
pub(super) enum Recipient {
    Command {
        process: PidFd,
        group: CommandGroup,
    },
    /// This program, which ends; a command that is stopped before its exit then exits.
    Memprof,
}

impl SignalForwarder {
    /// Blocks the signals in this thread and in those that it creates later, and starts the thread that receives them.
    /// Until the recipient is a command, a signal ends this program.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub(super) fn start() -> anyhow::Result<Self> {
        let recipient = Arc::new(Mutex::new(Recipient::Memprof));
        let forwarder = Self(Arc::clone(&recipient));
        let signals = interrupts::block_signals()?;
        let watching = open_signal_fd(&signals).context("failed to watch for signals")?;
        let forward = move || {
            while let Ok(Some(info)) = watching.read_signal() {
                if let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed()) {
                    lock_recipient(&recipient).handle_signal(signal, info.ssi_code);
                }
            }
        };
        let thread = thread::Builder::new().name("signals".to_owned());
        thread
            .spawn(forward)
            .context("failed to watch for signals")?;
        Ok(forwarder)
    }

    /// Locks the recipient, so that it can be changed. Signals that arrive before the guard is dropped wait.
    pub(super) fn lock(&self) -> MutexGuard<'_, Recipient> {
        lock_recipient(&self.0)
    }
}

/// Locks the recipient, even if a thread panicked while it held the lock.
fn lock_recipient(recipient: &Mutex<Recipient>) -> MutexGuard<'_, Recipient> {
    recipient.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a descriptor from which the signals are read; they must be blocked. A read waits for a signal.
fn open_signal_fd(signals: &SigSet) -> nix::Result<SignalFd> {
    SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC)
}

impl Recipient {
    /// Handles a signal. If the recipient is the command, forwards it, unless the command has received it too. If the
    /// recipient is memprof, ends this program.
    fn handle_signal(&self, signal: Signal, si_code: i32) {
        match self {
            Self::Command { group, .. } if group.has_received(signal, si_code) => {}
            Self::Command { process, group } => group.send_signal(process, signal),
            Self::Memprof => {
                output::clear_progress();
                process::exit(signal_exit_code(signal).into());
            }
        }
    }
}
