//! SIGINT, SIGTERM and SIGHUP while another process is changed: the first signal ends the work early, the second one
//! ends this program.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::output;

/// Time within which a repeated signal counts as the same interrupt: timeout(1) signals a process, and then its group.
const REPEAT_TIME: Duration = Duration::from_millis(500);

/// Signals that end the work early.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Watches for the signals in a separate thread.
#[derive(Debug)]
pub(crate) struct Interrupts(Arc<WatchState>);

/// State that the thread of the signals shares with [`Interrupts`].
#[derive(Debug)]
struct WatchState {
    /// Readable once a signal has come that ends the work.
    signal_event: OwnedFd,
    state: Mutex<InterruptState>,
}

/// Signal and registered changes.
#[derive(Debug)]
struct InterruptState {
    /// The first signal, with its time.
    first: Option<(Signal, Instant)>,
    /// Changes that stay in other processes if this one ends at once, with their time limits, by pid.
    changes: Vec<(u32, String)>,
}

impl Interrupts {
    /// Blocks the signals ([`block_signals`]), and starts a thread that watches for them. While no
    /// [change](Self::add_change) is registered, the first signal ends this program.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub(crate) fn start_watching() -> Result<Self> {
        let signal_event =
            eventfd(0, EventfdFlags::CLOEXEC).context("failed to watch for signals")?;
        let shared = Arc::new(WatchState {
            signal_event,
            state: Mutex::new(InterruptState {
                first: None,
                changes: Vec::new(),
            }),
        });
        let signals = block_signals()?;
        let watching = Arc::clone(&shared);
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                while let Ok(signal) = signals.wait() {
                    watching.handle_signal(signal);
                }
            })
            .context("failed to watch for signals")?;
        Ok(Self(shared))
    }

    /// Registers a change of a process that stays if this program ends at once. `change` is the text that is printed
    /// then: when the change ends by itself, and how to undo it.
    pub(crate) fn add_change(&self, pid: u32, change: String) {
        self.0.lock().changes.push((pid, change));
    }

    /// Removes the change of a process that was added last, because it was undone.
    pub(crate) fn remove_last_change(&self, pid: u32) {
        let changes = &mut self.0.lock().changes;
        if let Some(last) = changes.iter().rposition(|(changed, _)| *changed == pid) {
            changes.remove(last);
        }
    }

    /// Removes all changes of a process, because they were undone.
    pub(crate) fn remove_changes(&self, pid: u32) {
        let changes = &mut self.0.lock().changes;
        changes.retain(|(changed, _)| *changed != pid);
    }

    /// Removes all changes, and returns their texts.
    pub(crate) fn take_changes(&self) -> Vec<String> {
        let changes = std::mem::take(&mut self.0.lock().changes);
        changes.into_iter().map(|(_, change)| change).collect()
    }

    /// Waits until a signal comes that ends the work, or `time` is over. Returns whether such a signal has come; also
    /// false if the wait ends early because another signal is handled (EINTR).
    pub(crate) fn wait_for_signal(&self, time: Duration) -> Result<bool> {
        let time = Timespec::try_from(time).context("the time to wait")?;
        let mut waited = [PollFd::new(self, PollFlags::IN)];
        match rustix::event::poll(&mut waited, Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno).context("failed to wait"),
        }
    }

    /// Returns the signal that ended the work early; `None` if none has come.
    pub(crate) fn ending_signal(&self) -> Option<Signal> {
        self.0.lock().first.map(|(signal, _)| signal)
    }
}

// Readable once a signal has come.
impl AsFd for Interrupts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.signal_event.as_fd()
    }
}

impl WatchState {
    /// Locks the state, even if a thread panicked while it held the lock.
    fn lock(&self) -> std::sync::MutexGuard<'_, InterruptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a signal. If it is the first one and changes are registered, only records it, and makes
    /// [`Interrupts::wait_for_signal`] return. Ignores a repetition of the first one within [`REPEAT_TIME`]. Any other
    /// signal ends this program, after it has printed for each changed process how to undo the change.
    fn handle_signal(&self, signal: Signal) {
        // The lock is held until the exit, so that no change can be registered any more.
        let mut state = self.lock();
        match state.first {
            None if !state.changes.is_empty() => {
                state.first = Some((signal, Instant::now()));
                // The write fails only if the descriptor is readable already.
                let _ = rustix::io::write(&self.signal_event, &1_u64.to_ne_bytes());
                return;
            }
            Some((first, time)) if first == signal && time.elapsed() < REPEAT_TIME => return,
            None | Some(_) => {}
        }
        output::clear_progress();
        let mut named = Vec::new();
        for (pid, first) in &state.changes {
            if !named.contains(pid) {
                named.push(*pid);
                output::print_stderr(&format!("memprof: left at once: {first}"));
            }
        }
        process::exit(signal_exit_code(signal).into());
    }
}

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and in those that it creates from now on, except signals that this
/// program's caller ignores (nohup(1)). Returns the blocked signals. Programs that are started inherit the mask, unless
/// [`signals::inherit_caller_signals`](crate::signals::inherit_caller_signals) restores that of the caller.
pub(crate) fn block_signals() -> Result<SigSet> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let ignored = ignored_signals(&status);
    let signals: SigSet = SIGNALS
        .into_iter()
        .filter(|signal| ignored & 1 << (*signal as i32 - 1) == 0)
        .collect();
    signals.thread_block().context("failed to block signals")?;
    Ok(signals)
}

/// Returns the exit code of a program that a signal ends, as shells report it: 128 plus its number.
pub(crate) fn signal_exit_code(signal: Signal) -> u8 {
    128 + signal as u8
}

/// Returns the signals that a process ignores, from its status (proc(5), `SigIgn`); bit 0 is signal 1. 0 if the field
/// is missing.
fn ignored_signals(status: &str) -> u64 {
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
            ignored_signals("SigBlk:\t00000000000000ff\nSigIgn:\t0000000000001001\n"),
            0x1001
        );
        assert_eq!(ignored_signals(""), 0);
    }
}
