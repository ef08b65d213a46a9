//! Deadline of a step that a thread of the target makes as soon as it has a processor: on a busy machine, or after
//! threads of a real-time priority, that may take long.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memprof_ptrace::read_proc_text;

/// Timeout of the step while its thread does not wait for a processor.
pub(crate) const CALLS_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the step while its thread waits for a processor.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum interval between two checks whether the thread waits for a processor.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of threads that one check reads.
const MAX_THREADS: usize = 4096;

/// Deadline that begins when it is created.
#[derive(Debug)]
pub(crate) struct StepDeadline {
    start: Instant,
    last_check: Option<Instant>,
}

impl StepDeadline {
    /// Starts the deadline now.
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            last_check: None,
        }
    }

    /// Returns the time since the start, in whole seconds.
    pub(crate) fn elapsed_seconds(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// Returns whether the deadline has passed: 5 s after its start, or 30 s while thread `tid` of the process is ready
    /// to run, or another thread of the process has never run. Checks the threads once per second at most, and returns
    /// false in between.
    pub(crate) fn has_passed(&mut self, pid: u32, tid: u32) -> bool {
        let elapsed = self.start.elapsed();
        if elapsed < CALLS_TIMEOUT
            || self
                .last_check
                .is_some_and(|at| at.elapsed() < CHECK_INTERVAL)
        {
            return false;
        }
        self.last_check = Some(Instant::now());
        elapsed > BUSY_TIMEOUT || !waits_for_processor(pid, tid)
    }
}

/// Returns whether the thread `tid` of a process is ready to run, or another thread of the process has never run. A new
/// thread, which has not run yet, may be the one that makes the step.
fn waits_for_processor(pid: u32, tid: u32) -> bool {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let is_new = |path: PathBuf| read_proc_text(path).is_ok_and(|text| has_never_run(&text));
    // If the kernel does not count processor times, no thread seems to have run, not even this one.
    let is_counted = !is_new("/proc/thread-self/schedstat".into());
    let threads = fs::read_dir(&tasks).into_iter().flatten().flatten();
    let mut threads = threads.take(MAX_THREADS).map(|entry| entry.path());
    is_ready_to_run(pid, tid) || is_counted && threads.any(|path| is_new(path.join("schedstat")))
}

/// Returns whether a thread runs or waits for a processor (proc(5), stat). False if it has ended.
pub(crate) fn is_ready_to_run(pid: u32, tid: u32) -> bool {
    let stat = read_proc_text(format!("/proc/{pid}/task/{tid}/stat"));
    stat.is_ok_and(|stat| is_runnable(&stat))
}

/// Returns whether a thread runs or is ready to run, by the text of its stat (proc(5)).
fn is_runnable(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.trim_start());
    fields.is_some_and(|fields| fields.starts_with('R'))
}

/// Returns whether a thread has had no processor yet, by the text of its schedstat: its time on one, its time of
/// waiting and the number of its time slices (Documentation/scheduler/sched-stats.rst of Linux).
fn has_never_run(schedstat: &str) -> bool {
    let mut fields = schedstat.split_ascii_whitespace();
    matches!(
        (fields.next(), fields.next(), fields.next()),
        (Some("0"), Some(_), Some("0"))
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn thread_that_waits_is_recognized_by_its_files() {
        let check = |text: &str, expected| assert_eq!(has_never_run(text), expected, "{text}");
        check("0 0 0\n", true);
        check("0 5123 0\n", true);
        check("77 5123 1\n", false);
        check("", false);
        let check = |text: &str, expected| assert_eq!(is_runnable(text), expected, "{text}");
        check("7 (a) R) R 1 7", true);
        check("7 (R) S 1 7", false);
        check("", false);
    }

    #[test]
    fn thread_that_computes_is_ready() {
        let is_done = &AtomicBool::new(false);
        thread::scope(|scope| {
            let (sender, tids) = mpsc::channel();
            scope.spawn(move || {
                sender.send(nix::unistd::gettid()).unwrap();
                while !is_done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let stat = format!("/proc/self/task/{}/stat", tids.recv().unwrap());
            let computes = is_runnable(&fs::read_to_string(stat).unwrap());
            is_done.store(true, Ordering::Relaxed);
            assert!(computes);
        });
    }
}
