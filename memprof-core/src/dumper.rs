//! The thread on which dumps are taken.
//!
//! A thread of its own, because a dump blocks every signal (a small `RLIMIT_FSIZE` would
//! otherwise kill the host by SIGXFSZ) and must not be interrupted by the host's handlers.

use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::Mutex;
use std::sync::mpsc::{self, SyncSender};
use std::thread::Builder;

use nix::sys::signal::SigSet;

use crate::error::{Error, ErrorKind, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that sleeps until it has a job.
#[derive(Debug, Default)]
pub(crate) struct Dumper {
    /// The process that owns the thread, and the way to it. A forked child has no such thread.
    thread: Mutex<Option<(u32, SyncSender<Job>)>>,
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
        let (done, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            let outcome = panic::catch_unwind(AssertUnwindSafe(work));
            // Nobody waits any more only if the waiting thread was killed with the process.
            if done.send(outcome).is_err() {
                log::debug!("nobody waits for the dump");
            }
        });
        let gone = || Error::new(ErrorKind::Internal, "the dumper thread ended");
        self.sender()?.send(job).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())?.map_err(|payload| {
            // Dropping a payload runs foreign code, which may panic again.
            std::mem::forget(payload);
            Error::new(
                ErrorKind::Internal,
                "the dumper panicked; the host's log names the place",
            )
        })
    }

    /// Starts the thread early, so that a dump later needs no new one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(&self) -> Result<()> {
        self.sender().map(drop)
    }

    fn sender(&self) -> Result<SyncSender<Job>> {
        let mut thread = self
            .thread
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((owner, sender)) = &*thread
            && *owner == process::id()
        {
            return Ok(sender.clone());
        }
        let sender = spawn()?;
        *thread = Some((process::id(), sender.clone()));
        Ok(sender)
    }
}

fn spawn() -> Result<SyncSender<Job>> {
    let (sender, jobs) = mpsc::sync_channel::<Job>(0);
    Builder::new()
        .name("memprof-dumper".into())
        .stack_size(256 * 1024)
        .spawn(move || match SigSet::all().thread_block() {
            Ok(()) => jobs.into_iter().for_each(|job| job()),
            Err(errno) => {
                log::error!("the dumper cannot block signals, so it takes no dumps: {errno}")
            }
        })
        .map_err(|error| Error::io("start the dumper thread", &error))?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
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
    fn survives_a_panicking_job() {
        let dumper = Dumper::default();
        let error = dumper.run(|| panic!("on purpose")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert_eq!(dumper.run(|| 7), Ok(7));
    }
}
