//! What is done at the program's exit, on a thread that was made for it beforehand.
//!
//! exit(3) may be called anywhere: in a signal handler that interrupted malloc, for example, which
//! then holds a lock of the allocator for ever. So the exiting thread allocates nothing, takes no
//! lock, and waits for the other one within bounds only.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

use crate::error::{Error, Result};

const ASLEEP: u32 = 0;
const AT_WORK: u32 = 1;
const DONE: u32 = 2;
const GIVEN_UP: u32 = 3;

/// A thread that sleeps until the exit; dropped, it ends without having done anything.
#[derive(Debug)]
pub(crate) struct ExitDump {
    /// The process that has the thread. A forked child does not.
    process: u32,
    state: Arc<AtomicU32>,
}

impl ExitDump {
    /// Has `work` done at the exit.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn prepare(work: impl FnOnce() + Send + 'static) -> Result<Self> {
        let state = Arc::new(AtomicU32::new(ASLEEP));
        let theirs = Arc::clone(&state);
        memprof_own::spawn(c"memprof-exit", move |privileges| {
            while theirs.load(Ordering::Acquire) == ASLEEP {
                wait(&theirs, ASLEEP, None);
            }
            if theirs.load(Ordering::Acquire) == AT_WORK {
                privileges.match_main_thread();
                work();
                theirs.store(DONE, Ordering::Release);
                wake(&theirs);
            }
        })
        .map_err(|error| Error::io("start the thread that dumps at the exit", &error))?;
        Ok(Self {
            process: process::id(),
            state,
        })
    }

    /// Has the work done now, and waits until it is, but no longer than `patience`. Only the first
    /// call does anything.
    pub(crate) fn run(&self, patience: Duration) {
        let begun = Instant::now();
        if self.process != process::id() || !self.advance_to(AT_WORK) {
            return;
        }
        while self.state.load(Ordering::Acquire) == AT_WORK {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            wait(&self.state, AT_WORK, Some(left));
        }
    }

    /// Ends the thread without having done anything.
    pub(crate) fn cancel(&self) {
        self.advance_to(GIVEN_UP);
    }

    fn advance_to(&self, next: u32) -> bool {
        let passed = self
            .state
            .compare_exchange(ASLEEP, next, Ordering::AcqRel, Ordering::Acquire);
        if passed.is_ok() {
            wake(&self.state);
        }
        passed.is_ok()
    }
}

impl Drop for ExitDump {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Returns when `state` is not `known` any more, at the latest after `time`, or for no reason.
fn wait(state: &AtomicU32, known: u32, time: Option<Duration>) {
    let time = time.map(|time| Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    });
    // Each reason to return is one to look again.
    let _ = futex::wait(state, Flags::PRIVATE, known, time.as_ref());
}

fn wake(state: &AtomicU32) {
    // It fails for addresses only that are none.
    let _ = futex::wake(state, Flags::PRIVATE, u32::MAX >> 1);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_work_is_done_once() {
        let (tell, told) = mpsc::channel();
        let exit_dump = ExitDump::prepare(move || tell.send(7).unwrap()).unwrap();
        exit_dump.run(Duration::from_secs(60));
        assert_eq!(told.try_recv(), Ok(7));
        exit_dump.run(Duration::from_secs(60));
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn an_exit_goes_on_when_the_work_never_ends() {
        let (_held, stuck) = mpsc::channel::<()>();
        let exit_dump = ExitDump::prepare(move || assert!(stuck.recv().is_err())).unwrap();
        let begun = Instant::now();
        exit_dump.run(Duration::from_millis(10));
        assert!(begun.elapsed() >= Duration::from_millis(10));
    }

    #[test]
    fn without_an_exit_nothing_is_done() {
        let (tell, told) = mpsc::channel::<()>();
        drop(ExitDump::prepare(move || tell.send(()).unwrap()));
        // The closure is dropped without being called.
        assert!(told.recv().is_err());
    }
}
