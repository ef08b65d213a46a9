//! The jobs of a server: few at a time, and the results of the last ones.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use serde::Deserialize;

use super::action::Action;
use super::job::{Job, JobRow};
use crate::problem::{Problem, Result};

/// Most jobs that run at the same time.
const MAX_RUNNING: usize = 2;
/// Most jobs that are kept, with their pages.
const MAX_KEPT: usize = 16;
/// Time between two checks of the running jobs.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Request for a job.
#[derive(Debug, Deserialize)]
pub(super) struct JobRequest {
    pid: u32,
    /// Name of the process as it was listed: another process may have its pid now.
    name: String,
    action: Action,
}

/// Running and finished jobs.
#[derive(Debug)]
pub(super) struct JobList {
    program: PathBuf,
    state: Mutex<JobListState>,
}

#[derive(Debug, Default)]
struct JobListState {
    /// Oldest first.
    jobs: VecDeque<Job>,
    last_id: u64,
}

impl JobList {
    /// Creates an empty list; `program` is memprof's executable, which runs the jobs.
    pub(super) fn new(program: PathBuf) -> Self {
        Self {
            program,
            state: Mutex::default(),
        }
    }

    /// Locks the list, and updates the state of each job, which may cancel a job that exceeds a limit.
    fn lock_and_poll_jobs(&self) -> MutexGuard<'_, JobListState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs.iter_mut().for_each(Job::poll);
        state
    }

    /// Starts a job, and returns its row. Drops the oldest ended jobs if there are more than `MAX_KEPT`.
    ///
    /// # Errors
    /// Too many jobs run, another job runs on the process, the process has ended or has another name now, or the
    /// command cannot be started.
    pub(super) fn start(&self, request: &JobRequest) -> Result<JobRow> {
        let JobRequest { pid, name, action } = request;
        if read_process_name(*pid).as_ref() != Some(name) {
            let message = format!("process {pid} is not {name} any more");
            return Err(Problem::not_found(message).remedy("look at the list again"));
        }
        let mut state = self.lock_and_poll_jobs();
        let running = || state.jobs.iter().filter(|job| job.is_running());
        let busy = |message: String| {
            Problem::new(StatusCode::CONFLICT, "busy", message)
                .remedy("wait for the other job, or cancel it")
        };
        if running().any(|job| job.pid == *pid) {
            return Err(busy(format!("another job works on process {pid}")));
        }
        if running().count() >= MAX_RUNNING {
            return Err(busy(format!("{MAX_RUNNING} jobs run already")));
        }
        let id = state.last_id + 1;
        let job = Job::start(&self.program, id, *pid, name.clone(), *action)
            .map_err(|error| Problem::internal(format!("failed to start the job: {error}")))?;
        let row = job.row();
        state.last_id = id;
        state.jobs.push_back(job);
        while state.jobs.len() > MAX_KEPT {
            let oldest = state.jobs.iter().position(|job| !job.is_running());
            match oldest {
                Some(index) => drop(state.jobs.remove(index)),
                None => break,
            }
        }
        Ok(row)
    }

    /// Updates the jobs every 100 ms until none runs, so that limits are enforced even if no client requests the list.
    pub(super) async fn poll_until_done(&self) {
        while self.lock_and_poll_jobs().jobs.iter().any(Job::is_running) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the jobs, newest first.
    pub(super) fn rows(&self) -> Vec<JobRow> {
        let state = self.lock_and_poll_jobs();
        state.jobs.iter().rev().map(Job::row).collect()
    }

    /// Cancels a job, and returns its row. A job that has ended stays as it is.
    ///
    /// # Errors
    /// There is no such job, or its command would leave its work half done if it were interrupted.
    pub(super) fn cancel(&self, id: u64) -> Result<JobRow> {
        let mut state = self.lock_and_poll_jobs();
        let mut jobs = state.jobs.iter_mut();
        let job = jobs
            .find(|job| job.id == id)
            .ok_or_else(|| no_job_error(id))?;
        if !job.is_cancellable() {
            let message = format!("job {id} cannot be cancelled");
            return Err(Problem::new(StatusCode::CONFLICT, "busy", message)
                .remedy("wait for its end: it takes seconds"));
        }
        job.cancel();
        Ok(job.row())
    }

    /// Cancels all running jobs, also those that a client may not cancel.
    pub(super) fn cancel_all(&self) {
        self.lock_and_poll_jobs()
            .jobs
            .iter_mut()
            .for_each(Job::cancel);
    }

    /// Reads the page that a job's command wrote.
    ///
    /// # Errors
    /// There is no such job, or it is not done, or its command wrote no page.
    pub(super) fn read_page(&self, id: u64) -> Result<Vec<u8>> {
        let state = self.lock_and_poll_jobs();
        let job = state.jobs.iter().find(|job| job.id == id);
        let job = job.ok_or_else(|| no_job_error(id))?;
        job.read_page().ok_or_else(|| {
            Problem::not_found(format!("job {id} has no page"))
                .remedy("wait for its end; if it failed, start it again")
        })
    }
}

/// Returns the error 404 for the id of a job that does not exist or was dropped.
fn no_job_error(id: u64) -> Problem {
    Problem::not_found(format!("there is no job {id}"))
        .remedy("look at the list again: only the last jobs are kept")
}

/// Reads the name of a process, as `memprof ps` lists it: `Name` in /proc/PID/status, where some characters are
/// escaped. `None` if there is no such process, or the file is malformed.
fn read_process_name(pid: u32) -> Option<String> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let name = status.lines().next()?.strip_prefix("Name:")?;
    Some(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_job_is_not_found() {
        let jobs = JobList::new(PathBuf::from("/bin/true"));
        let remedy = "look at the list again: only the last jobs are kept";
        let check = |problem: Option<Problem>| {
            let error = problem.expect("there is no job").error;
            let found = (error.message.as_str(), error.remedy.as_str());
            assert_eq!(found, ("there is no job 7", remedy));
        };
        check(jobs.cancel(7).err());
        check(jobs.read_page(7).err());
    }
}
