//! The thread that takes dumps.
//!
//! Dumps need a thread of their own because they block all signals: a small `RLIMIT_FSIZE` would otherwise kill the
//! host with SIGXFSZ, and the host's signal handlers must not interrupt a dump.

use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memprof_own::{DescriptorTable, Privileges};

use memprof_messages::Operation;

use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;

/// Time between two polls. An allocator writes about one MiB in that time.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that sleeps until it has a job.
///
/// Both sides wait on condition variables, and not on a channel: a channel would store a value in the thread-local
/// storage of the program's thread, which that thread would free when it ends.
#[derive(Debug, Default)]
pub(crate) struct Dumper {
    handle: Mutex<Option<DumperHandle>>,
}

/// Handle of the running thread. Dropping it stops the thread.
#[derive(Debug)]
struct DumperHandle {
    /// Pid of the process in which the thread runs. A forked child does not have the thread.
    process: u32,
    /// Descriptor table of the thread. Jobs use files that the requesting thread opened, so it must have the same
    /// table.
    table: DescriptorTable,
    state: Arc<DumperState>,
}

#[derive(Debug, Default)]
struct DumperState {
    next: Mutex<PendingJob>,
    changed: Condvar,
}

#[derive(Default)]
enum PendingJob {
    #[default]
    Nothing,
    Job(Job),
    End,
}

impl Dumper {
    /// Runs `work` on the dumper's thread, which is started if necessary, and waits for its result.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started. `Internal`: `work` panicked.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.run_with_poll(work, || false)
    }

    /// Runs `work` on the dumper's thread, which is started if necessary, and waits for its result. Meanwhile calls
    /// `poll` on the calling thread every 5 ms, until `poll` returns false.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started. `Internal`: `work` panicked.
    pub(crate) fn run_with_poll<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        poll: impl Fn() -> bool,
    ) -> Result<T> {
        let state = self.ensure_started()?;
        let outcome = Arc::new((Mutex::new(None), Condvar::new()));
        let result = Arc::clone(&outcome);
        state.submit_job(Box::new(move || {
            *lock(&result.0) = Some(panic::catch_unwind(AssertUnwindSafe(work)));
            result.1.notify_one();
        }));
        let outcome = wait_with_poll(&outcome, poll);
        match outcome {
            Some(Ok(value)) => Ok(value),
            Some(Err(payload)) => {
                // The payload is leaked, because dropping it runs foreign code, which may panic again.
                std::mem::forget(payload);
                Err(Error::new(
                    ErrorKind::Internal,
                    "the dumper panicked; the host's log names the place",
                ))
            }
            None => Err(Error::new(
                ErrorKind::Internal,
                "the dumper returned no result",
            )),
        }
    }

    /// Starts the thread early, so that a later dump does not have to.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    pub(crate) fn start(&self) -> Result<()> {
        self.ensure_started().map(drop)
    }

    /// Stops the thread after its current job. The next dump starts a new thread.
    pub(crate) fn stop(&self) {
        drop(lock(&self.handle).take());
    }

    /// Returns the state of the running thread. Starts a thread if this process has none with the caller's descriptor
    /// table; a thread with another table is stopped after its current job.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    fn ensure_started(&self) -> Result<Arc<DumperState>> {
        let mut handle = lock(&self.handle);
        let (process, table) = (process::id(), DescriptorTable::current());
        if let Some(running) = &*handle
            && (running.process, running.table) == (process, table)
        {
            return Ok(Arc::clone(&running.state));
        }
        let state: Arc<DumperState> = Arc::default();
        let worker = Arc::clone(&state);
        memprof_own::spawn(c"memprof-dumper", move |privileges| {
            worker.run_jobs(privileges)
        })
        .map_err(|error| {
            Error::io_for_operation(Operation::Thread, "start the dumper thread", &error)
        })?;
        *handle = Some(DumperHandle {
            process,
            table,
            state: Arc::clone(&state),
        });
        Ok(state)
    }
}

/// Waits for the outcome and returns it. Until `poll` returns false, calls it every [`POLL_INTERVAL`] without holding
/// the lock. `None` only if another thread panicked while it held the lock.
fn wait_with_poll<T>(result: &(Mutex<Option<T>>, Condvar), poll: impl Fn() -> bool) -> Option<T> {
    let (outcome, changed) = result;
    let mut is_polling = true;
    while is_polling {
        let waited =
            changed.wait_timeout_while(lock(outcome), POLL_INTERVAL, |value| value.is_none());
        let (mut value, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if !timeout.timed_out() {
            return value.take();
        }
        drop(value);
        is_polling = poll();
    }
    let waited = changed.wait_while(lock(outcome), |value| value.is_none());
    waited.unwrap_or_else(PoisonError::into_inner).take()
}

impl DumperState {
    /// Passes a job to the thread. Blocks while an earlier job is waiting.
    fn submit_job(&self, job: Job) {
        let mut next = self.wait_while(|next| matches!(next, PendingJob::Job(_)));
        *next = PendingJob::Job(job);
        self.changed.notify_all();
    }

    /// Body of the thread: runs jobs until the thread is stopped. Before each job, drops the capabilities that the
    /// program's main thread no longer has.
    fn run_jobs(&self, privileges: &mut Privileges) {
        loop {
            let mut next = self.wait_while(|next| matches!(next, PendingJob::Nothing));
            let PendingJob::Job(job) = std::mem::take(&mut *next) else {
                return;
            };
            drop(next);
            self.changed.notify_all();
            privileges.limit_to_main_thread();
            job();
        }
    }

    /// Waits while `condition` holds for the pending job, and returns its lock.
    fn wait_while(
        &self,
        condition: impl FnMut(&mut PendingJob) -> bool,
    ) -> MutexGuard<'_, PendingJob> {
        let waited = self.changed.wait_while(lock(&self.next), condition);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DumperHandle {
    fn drop(&mut self) {
        // In a forked child there is no thread to stop, and the copy of the lock may be locked forever.
        if self.process == process::id() {
            *lock(&self.state.next) = PendingJob::End;
            self.state.changed.notify_all();
        }
    }
}

impl std::fmt::Debug for PendingJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Job(_) => "Job",
            Self::End => "End",
        })
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::SigSet;

    use super::*;

    #[test]
    fn job_runs_with_every_signal_blocked() {
        let mask = Dumper::default()
            .run(|| SigSet::thread_get_mask().unwrap())
            .unwrap();
        assert!(mask.contains(nix::sys::signal::Signal::SIGXFSZ));
        assert!(
            !SigSet::thread_get_mask()
                .unwrap()
                .contains(nix::sys::signal::Signal::SIGXFSZ)
        );
    }

    #[test]
    fn stopped_dumper_starts_again() {
        let dumper = Dumper::default();
        assert_eq!(dumper.run(|| 7), Ok(7));
        dumper.stop();
        assert_eq!(dumper.run(|| 8), Ok(8));
    }

    #[test]
    fn dumper_survives_panicking_job() {
        let dumper = Dumper::default();
        let error = dumper.run(|| panic!("on purpose")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert_eq!(dumper.run(|| 7), Ok(7));
    }
}
