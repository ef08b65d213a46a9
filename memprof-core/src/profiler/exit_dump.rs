//! Runs a dump at the program's exit, on a thread that was started in advance.
//!
//! exit(3) may be called anywhere, for example in a signal handler that interrupted malloc while malloc held a lock.
//! That lock is then never released. So the exiting thread allocates nothing, takes no lock, and waits for the other
//! thread only up to a timeout.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

use memprof_messages::Operation;
use memprof_own::coarse_monotonic_time;

use crate::error::{Error, Result};

/// Values of [`ExitDump::state`].
const WAITING: u32 = 0;
const RUNNING: u32 = 1;
const DONE: u32 = 2;
const CANCELLED: u32 = 3;

/// A thread that waits for the exit. Dropping this ends the thread without a dump.
#[derive(Debug)]
pub(crate) struct ExitDump {
    /// Pid of the process in which the thread runs. A forked child does not have the thread.
    process: u32,
    state: Arc<AtomicU32>,
}

impl ExitDump {
    /// Starts the thread that will run `work` at the exit. It waits for [`run_work`](Self::run_work), and ends without
    /// running `work` after [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    pub(crate) fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<Self> {
        let state = Arc::new(AtomicU32::new(WAITING));
        let thread_state = Arc::clone(&state);
        memprof_own::spawn(c"memprof-exit", move |privileges| {
            while thread_state.load(Ordering::Acquire) == WAITING {
                wait_for_change(&thread_state, WAITING, None);
            }
            if thread_state.load(Ordering::Acquire) == RUNNING {
                privileges.limit_to_main_thread();
                work();
                thread_state.store(DONE, Ordering::Release);
                wake_waiters(&thread_state);
            }
        })
        .map_err(|error| {
            Error::io_for_operation(
                Operation::Thread,
                "start the thread that dumps at the exit",
                &error,
            )
        })?;
        Ok(Self {
            process: process::id(),
            state,
        })
    }

    /// Makes the thread run its work, and waits until it has finished or `timeout` is over. Only the first call has an
    /// effect, and none after [`cancel`](Self::cancel) or in a forked child, which lacks the thread.
    pub(crate) fn run_work(&self, timeout: Duration) {
        // The calling thread is the program's, which may be forbidden RDTSC. Only coarse clocks do without it.
        let start = coarse_monotonic_time();
        if self.process != process::id() || !self.advance_to(RUNNING) {
            return;
        }
        while self.state.load(Ordering::Acquire) == RUNNING {
            let remaining = timeout.saturating_sub(coarse_monotonic_time().saturating_sub(start));
            if remaining.is_zero() {
                return;
            }
            wait_for_change(&self.state, RUNNING, Some(remaining));
        }
    }

    /// Ends the thread without running its work. Does nothing if the work has begun.
    pub(crate) fn cancel(&self) {
        self.advance_to(CANCELLED);
    }

    /// Changes the state from `WAITING` to `next`, and wakes the thread. Returns false if the state was not `WAITING`.
    fn advance_to(&self, next: u32) -> bool {
        let changed =
            self.state
                .compare_exchange(WAITING, next, Ordering::AcqRel, Ordering::Acquire);
        if changed.is_ok() {
            wake_waiters(&self.state);
        }
        changed.is_ok()
    }
}

impl Drop for ExitDump {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Waits until `state` differs from `known`, but not longer than `time`; `None` means no limit. May also return
/// spuriously.
fn wait_for_change(state: &AtomicU32, known: u32, time: Option<Duration>) {
    let time = time.map(|time| Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    });
    // Ignored: the caller checks the state again after every return.
    let _ = futex::wait(state, Flags::PRIVATE, known, time.as_ref());
}

/// Wakes all threads that wait for a change of `state`.
fn wake_waiters(state: &AtomicU32) {
    // futex(2) takes the number of threads as an `int`, and fails only for invalid addresses.
    let _ = futex::wake(state, Flags::PRIVATE, u32::MAX >> 1);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn exit_work_runs_once() {
        let (sender, receiver) = mpsc::channel();
        let exit_dump = ExitDump::start_thread(move || sender.send(7).unwrap()).unwrap();
        exit_dump.run_work(Duration::from_secs(60));
        assert_eq!(receiver.try_recv(), Ok(7));
        exit_dump.run_work(Duration::from_secs(60));
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn exit_continues_after_timeout() {
        let (_sender, receiver) = mpsc::channel::<()>();
        let exit_dump = ExitDump::start_thread(move || assert!(receiver.recv().is_err())).unwrap();
        let start = Instant::now();
        exit_dump.run_work(Duration::from_millis(10));
        assert!(start.elapsed() >= Duration::from_millis(10));
    }

    #[test]
    fn dropped_exit_dump_runs_nothing() {
        let (sender, receiver) = mpsc::channel::<()>();
        drop(ExitDump::start_thread(move || sender.send(()).unwrap()));
        // The closure is dropped without being called.
        assert!(receiver.recv().is_err());
    }
}
