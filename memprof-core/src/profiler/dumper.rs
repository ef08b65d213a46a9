//! The thread on which dumps are taken.
//!
//! A thread of its own, because a dump blocks every signal (a small `RLIMIT_FSIZE` would
//! otherwise kill the host by SIGXFSZ) and must not be interrupted by the host's handlers.

use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memprof_own::Privileges;

use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;

/// Between two looks. In this time an allocator writes about a MiB.
const LOOK: Duration = Duration::from_millis(5);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that sleeps until it has a job.
///
/// Both sides wait for one another by condition variables. Channels would keep a value in
/// thread-local storage of the program's thread, whose end would free it.
#[derive(Debug, Default)]
pub(crate) struct Dumper {
    desk: Mutex<Option<DumperHandle>>,
}

/// The way to the thread, which ends when this is dropped.
#[derive(Debug)]
struct DumperHandle {
    /// The process that has the thread. A forked child does not.
    process: u32,
    shared: Arc<DumperState>,
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
    /// Runs `work` on the thread and waits for it.
    ///
    /// # Errors
    /// The thread cannot be started, or `work` panicked.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.run_with_poll(work, || false)
    }

    /// The same, and does `look` again and again meanwhile on the calling thread, until it is false.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn run_with_poll<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        look: impl Fn() -> bool,
    ) -> Result<T> {
        let shared = self.shared()?;
        let outcome = Arc::new((Mutex::new(None), Condvar::new()));
        let told = Arc::clone(&outcome);
        shared.submit(Box::new(move || {
            *lock(&told.0) = Some(panic::catch_unwind(AssertUnwindSafe(work)));
            told.1.notify_one();
        }));
        let outcome = wait(&outcome, look);
        match outcome {
            Some(Ok(value)) => Ok(value),
            Some(Err(payload)) => {
                // Dropping a payload runs foreign code, which may panic again.
                std::mem::forget(payload);
                Err(Error::new(
                    ErrorKind::Internal,
                    "the dumper panicked; the host's log names the place",
                ))
            }
            None => Err(Error::new(ErrorKind::Internal, "the dumper told nothing")),
        }
    }

    /// Starts the thread early, so that a dump later needs no new one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(&self) -> Result<()> {
        self.shared().map(drop)
    }

    /// Ends the thread, once it has done its work. The next dump starts another one.
    pub(crate) fn end(&self) {
        drop(lock(&self.desk).take());
    }

    fn shared(&self) -> Result<Arc<DumperState>> {
        let mut desk = lock(&self.desk);
        if let Some(DumperHandle { process, shared }) = &*desk
            && *process == process::id()
        {
            return Ok(Arc::clone(shared));
        }
        let shared: Arc<DumperState> = Arc::default();
        let works = Arc::clone(&shared);
        memprof_own::spawn(c"memprof-dumper", move |privileges| works.work(privileges))
            .map_err(|error| Error::io("start the dumper thread", &error))?;
        *desk = Some(DumperHandle {
            process: process::id(),
            shared: Arc::clone(&shared),
        });
        Ok(shared)
    }
}

/// Waits until there is something, and looks meanwhile, while the lock is not held.
fn wait<T>(told: &(Mutex<Option<T>>, Condvar), look: impl Fn() -> bool) -> Option<T> {
    let (outcome, changed) = told;
    let mut looks = true;
    while looks {
        let waited = changed.wait_timeout_while(lock(outcome), LOOK, |told| told.is_none());
        let (mut told, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if !timeout.timed_out() {
            return told.take();
        }
        drop(told);
        looks = look();
    }
    let waited = changed.wait_while(lock(outcome), |told| told.is_none());
    waited.unwrap_or_else(PoisonError::into_inner).take()
}

impl DumperState {
    fn submit(&self, job: Job) {
        let mut next = self.wait_while(|next| matches!(next, PendingJob::Job(_)));
        *next = PendingJob::Job(job);
        self.changed.notify_all();
    }

    fn work(&self, privileges: &mut Privileges) {
        loop {
            let mut next = self.wait_while(|next| matches!(next, PendingJob::Nothing));
            let PendingJob::Job(job) = std::mem::take(&mut *next) else {
                return;
            };
            drop(next);
            self.changed.notify_all();
            privileges.match_main_thread();
            job();
        }
    }

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
        // In a forked child there is no thread, and its lock may be held for ever.
        if self.process == process::id() {
            *lock(&self.shared.next) = PendingJob::End;
            self.shared.changed.notify_all();
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
    fn runs_with_every_signal_blocked() {
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
    fn ends_and_begins_again() {
        let dumper = Dumper::default();
        assert_eq!(dumper.run(|| 7), Ok(7));
        dumper.end();
        assert_eq!(dumper.run(|| 8), Ok(8));
    }

    #[test]
    fn survives_a_panicking_job() {
        let dumper = Dumper::default();
        let error = dumper.run(|| panic!("on purpose")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert_eq!(dumper.run(|| 7), Ok(7));
    }
}
