//! SIGINT, SIGTERM and SIGHUP while another process is changed: the first one ends the work early, the second one this
//! program.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{EventfdFlags, eventfd};

use crate::output;

const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Watches for the signals, from a thread of its own.
#[derive(Debug)]
pub(crate) struct Interrupts(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    /// Readable once a signal came that ends the work.
    came: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    signal: Option<Signal>,
    /// Changes that stay in the other process if this one ends at once, and until when.
    remains: Vec<String>,
}

impl Interrupts {
    /// Begins ([`block`]). While nothing [remains](Self::add), the first signal ends this program.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub(crate) fn watch() -> Result<Self> {
        let came = eventfd(0, EventfdFlags::CLOEXEC).context("failed to watch for signals")?;
        let watched = Arc::new(Watched {
            came,
            state: Mutex::new(State {
                signal: None,
                remains: Vec::new(),
            }),
        });
        let signals = block()?;
        let watching = Arc::clone(&watched);
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                while let Ok(signal) = signals.wait() {
                    watching.take(signal);
                }
            })
            .context("failed to watch for signals")?;
        Ok(Self(watched))
    }

    /// Adds what the other process keeps from now on where this program ends at once: until when, and how to end it.
    pub(crate) fn add(&self, remain: String) {
        self.0.lock().remains.push(remain);
    }

    /// Takes back what was added last: the other process keeps it no more.
    pub(crate) fn take_back(&self) {
        self.0.lock().remains.pop();
    }

    /// All that the other process keeps.
    pub(crate) fn take_all(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().remains)
    }

    /// The signal that ended the work.
    pub(crate) fn signal(&self) -> Option<Signal> {
        self.0.lock().signal
    }
}

/// Readable once a signal came.
impl AsFd for Interrupts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.came.as_fd()
    }
}

impl Watched {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, signal: Signal) {
        // Held to the end, so that nothing is changed any more.
        let mut state = self.lock();
        if !state.remains.is_empty() && state.signal.is_none() {
            state.signal = Some(signal);
            // It fails only where it is readable already.
            let _ = rustix::io::write(&self.came, &1_u64.to_ne_bytes());
            return;
        }
        output::clear();
        if let Some(first) = state.remains.first() {
            output::print_stderr(&format!("memprof: left at once: {first}"));
        }
        process::exit(exit_code(signal).into());
    }
}

/// Blocks the signals in this thread and in those that it makes from now on. Those that this program's caller ignores
/// stay so (nohup(1)). A program that is started has them blocked too, but for
/// [`signals::inherit`](crate::signals::inherit).
pub(crate) fn block() -> Result<SigSet> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let ignored = ignored(&status);
    let signals: SigSet = SIGNALS
        .into_iter()
        .filter(|signal| ignored & 1 << (*signal as i32 - 1) == 0)
        .collect();
    signals.thread_block().context("failed to block signals")?;
    Ok(signals)
}

/// The exit code of a program that a signal ends, as shells report it.
pub(crate) fn exit_code(signal: Signal) -> u8 {
    128 + signal as u8
}

/// The signals that a process ignores, the first in the lowest bit (proc(5), `SigIgn`).
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(
            ignored("SigBlk:\t00000000000000ff\nSigIgn:\t0000000000001001\n"),
            0x1001
        );
        assert_eq!(ignored(""), 0);
    }
}
