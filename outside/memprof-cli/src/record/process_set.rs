//! Records a process and, with `--tree`, its descendants.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use memprof_ptrace::pidfd::PidFd;
use memprof_ptrace::process::{ProcStatus, ProcessState};

use super::recorded::{MAX_DESCENDANTS, ProcessResult, Recorded, RecordedProcesses};
use super::sampling::SamplingEnd;
use super::sampling_options::SamplingOptions;
use super::{RecordArgs, record_attached};
use crate::interrupts::Interrupts;
use crate::output;
use crate::process_names::describe_process;
use crate::process_tree::descendants;

/// Time between two searches for descendants that were forked meanwhile, and the least time of a recording.
const SEARCH_INTERVAL: Duration = Duration::from_millis(250);

/// Most programs of one process that are recorded, each executed by the one before.
const MAX_PROGRAMS: usize = 16;

/// Time between the execution of a program and its recording, in which it loads its libraries.
const LOAD_TIME: Duration = Duration::from_secs(1);

/// Records a process and, with `--tree`, its descendants at the same time, each in a thread of its own.
pub(super) fn record_processes(
    args: &RecordArgs,
    root: u32,
    interrupts: &Interrupts,
) -> RecordedProcesses {
    let sampling = args.sampling_options();
    // Opened before anything else is read by the pid, which may be another process's once this one has ended.
    let root_process = args.tree.then(|| PidFd::open(root).ok()).flatten();
    let is_root_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = args.tree.then(|| {
            let root = RootProcess {
                pid: root,
                process: root_process.as_ref(),
                is_done: &is_root_done,
            };
            scope.spawn(move || record_descendants(args, &root, interrupts))
        });
        let mut all = match others {
            None => RecordedProcesses::from_one_recording(
                root,
                record_attached(args, &sampling, root, interrupts),
            ),
            Some(_) => {
                let programs = record_programs(args, &sampling, root, interrupts);
                RecordedProcesses::new(programs, Vec::new())
            }
        };
        is_root_done.store(true, Ordering::Relaxed);
        if let Some(others) = others {
            all.append(join_thread(others));
        }
        all
    })
}

/// The process whose descendants are recorded.
#[derive(Debug)]
struct RootProcess<'a> {
    pid: u32,
    /// `None` before Linux 5.3, and if the process had ended.
    process: Option<&'a PidFd>,
    /// Whether its own recording has ended, or failed.
    is_done: &'a AtomicBool,
}

impl RootProcess<'_> {
    /// Returns the pids of the process's descendants that have not ended; none once it has ended itself.
    fn living_descendants(&self) -> Vec<u32> {
        let mut found = descendants(self.pid);
        found.retain(|pid| {
            let status = ProcStatus::read_thread(*pid);
            status.is_ok_and(|status| status.state != ProcessState::Zombie)
        });
        // Checked last: until then, the pid was certainly this process's, and so are the descendants found by it.
        match self.process {
            Some(process) if process.wait_for_end(Duration::ZERO) => Vec::new(),
            _ => found,
        }
    }
}

/// Records the descendants of a process, up to [`MAX_DESCENDANTS`]; the result names the others. Searches for new
/// descendants until the time is over, a signal comes, or the recordings of the process and of all its descendants have
/// ended.
fn record_descendants(
    args: &RecordArgs,
    root: &RootProcess<'_>,
    interrupts: &Interrupts,
) -> RecordedProcesses {
    let start = Instant::now();
    let mut search = DescendantSearch::default();
    let mut left_out = HashSet::new();
    thread::scope(|scope| {
        let mut recordings = Vec::new();
        while let Some(remaining) = args.duration.checked_sub(start.elapsed()) {
            let found = match search.is_first_search() || remaining > SEARCH_INTERVAL {
                true => root.living_descendants(),
                false => Vec::new(),
            };
            for pid in search.take_due_pids(&found) {
                match recordings.len() < MAX_DESCENDANTS {
                    true => {
                        let started = start_recording(scope, args, remaining, pid, interrupts);
                        recordings.push((pid, started));
                    }
                    false => {
                        left_out.insert(pid);
                    }
                }
            }
            let is_done = |(_, recording): &(u32, RecordingThread<'_>)| {
                recording
                    .as_ref()
                    .map_or(true, |thread| thread.is_finished())
            };
            if root.is_done.load(Ordering::Relaxed)
                && recordings.iter().all(is_done)
                && search.has_returned_all(&found)
            {
                break;
            }
            match interrupts.wait_for_signal(SEARCH_INTERVAL.min(remaining)) {
                Ok(false) => {}
                Ok(true) | Err(_) => break,
            }
        }
        let ended = recordings
            .into_iter()
            .flat_map(|(pid, recording)| match recording {
                Ok(thread) => join_thread(thread),
                Err(error) => vec![ProcessResult {
                    pid,
                    recorded: Err(error),
                    name: describe_process(pid),
                    notes: Vec::new(),
                }],
            });
        RecordedProcesses::new(ended.collect(), left_out.into_iter().collect())
    })
}

/// Records a process, and if it executes another program, as uWSGI does to reload itself, also that program, for the
/// time that remains. Returns the results in this order, after [`keep_only_last_if_it_has_profile`].
fn record_programs(
    args: &RecordArgs,
    sampling: &SamplingOptions,
    pid: u32,
    interrupts: &Interrupts,
) -> Vec<ProcessResult> {
    let start = Instant::now();
    // Opened before the first recording, because the pid may be another process's once this one has ended.
    let process = PidFd::open(pid);
    let is_alive = || {
        let process = process.as_ref();
        process.is_ok_and(|process| !process.wait_for_end(Duration::ZERO))
    };
    let record = |sampling: &SamplingOptions| record_attached(args, sampling, pid, interrupts);
    let mut programs = vec![record_collecting_notes(pid, || record(sampling))];
    while programs.len() < MAX_PROGRAMS
        && programs.last().is_some_and(has_ended_by_exec)
        && interrupts
            .wait_for_signal(LOAD_TIME)
            .is_ok_and(|is_interrupted| !is_interrupted)
        && is_alive()
        && let Some(remaining) = sampling.duration.checked_sub(start.elapsed())
        && remaining > SEARCH_INTERVAL
    {
        let rest = SamplingOptions {
            duration: remaining,
            ..sampling.clone()
        };
        programs.push(record_collecting_notes(pid, || record(&rest)));
    }
    keep_only_last_if_it_has_profile(programs)
}

/// Keeps only the last program if that has a profile, and adds a note to it if there were others: execve(2) has freed
/// their memory. Otherwise keeps all.
fn keep_only_last_if_it_has_profile(mut programs: Vec<ProcessResult>) -> Vec<ProcessResult> {
    let has_profile = |program: &ProcessResult| {
        let recorded = program.recorded.as_ref();
        recorded.is_ok_and(|recorded| recorded.profile.is_some())
    };
    let Some(mut last) = programs.pop_if(|program| has_profile(program)) else {
        return programs;
    };
    if !programs.is_empty() {
        last.notes.push(
            "it has executed another program meanwhile: the profile is that of the last one, for the memory of the one \
             before is freed"
                .to_owned(),
        );
    }
    vec![last]
}

/// Returns whether a recording ended because the process executed another program.
fn has_ended_by_exec(program: &ProcessResult) -> bool {
    let recorded = program.recorded.as_ref();
    recorded.is_ok_and(|recorded| recorded.end == SamplingEnd::Exec)
}

/// Calls `record`, which records a process. Notes that this thread makes meanwhile are put into the result instead of
/// being printed.
fn record_collecting_notes(
    pid: u32,
    record: impl FnOnce() -> anyhow::Result<Recorded>,
) -> ProcessResult {
    // Read before the recording, because a process that has ended has no name.
    let name = describe_process(pid);
    let (recorded, notes) = output::collect_notes(record);
    ProcessResult {
        pid,
        recorded,
        name,
        notes,
    }
}

/// Thread that records a process; an error if it could not be started.
type RecordingThread<'scope> = anyhow::Result<ScopedJoinHandle<'scope, Vec<ProcessResult>>>;

/// Starts a thread that records a process for the time `remaining`. The thread prints no note on the sample interval,
/// which would be repeated for each process.
fn start_recording<'scope>(
    scope: &'scope Scope<'scope, '_>,
    args: &'scope RecordArgs,
    remaining: Duration,
    pid: u32,
    interrupts: &'scope Interrupts,
) -> RecordingThread<'scope> {
    let sampling = SamplingOptions {
        duration: remaining,
        hides_interval: true,
        ..args.sampling_options()
    };
    let work = move || record_programs(args, &sampling, pid, interrupts);
    let thread = thread::Builder::new().name(format!("record {pid}"));
    thread
        .spawn_scoped(scope, work)
        .context("failed to start a thread")
}

/// Waits for a thread, and returns its result. If the thread panicked, this thread panics too.
fn join_thread<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Repeated search for descendants.
#[derive(Debug, Default)]
struct DescendantSearch {
    /// Those that were returned.
    known: HashSet<u32>,
    /// Those that the last search found; `None` before the first one.
    last: Option<HashSet<u32>>,
}

impl DescendantSearch {
    /// Returns the pids in `found` that are to be recorded from now on, each only once. At the first search, these are
    /// all; later, only those that the previous search found too: a process that has just been forked may be about to
    /// execute another program, or end at once.
    fn take_due_pids(&mut self, found: &[u32]) -> Vec<u32> {
        let last = self.last.replace(found.iter().copied().collect());
        let is_due = |pid: &u32| last.as_ref().is_none_or(|last| last.contains(pid));
        let due = found.iter().copied().filter(is_due);
        due.filter(|pid| self.known.insert(*pid)).collect()
    }

    /// Returns whether the next search is the first one.
    fn is_first_search(&self) -> bool {
        self.last.is_none()
    }

    /// Returns whether [`take_due_pids`](Self::take_due_pids) has returned all of `found`: none waits for being found
    /// again.
    fn has_returned_all(&self, found: &[u32]) -> bool {
        found.iter().all(|pid| self.known.contains(pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_process_is_recorded_from_its_second_look_on() {
        let mut search = DescendantSearch::default();
        let mut check = |found: &[u32], expected: &[u32]| {
            assert_eq!(search.take_due_pids(found), expected, "{found:?}");
        };
        check(&[7, 8], &[7, 8]);
        check(&[7, 8, 9], &[]);
        check(&[8, 9, 10], &[9]);
        check(&[8, 9], &[]);
        check(&[8, 10], &[]);
        check(&[8, 10], &[10]);
    }
}
