//! Reaps copies: a copy that has ended stays a zombie until its parent waits for it. The parent is the
//! process that was copied. It does not know of the copy, because no signal reports the end, so that no
//! handler of the program runs.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::process::{ProcStat, ProcStatus};
use memprof_ptrace::process_copy::ProcessCopy;
use memprof_ptrace::remote_call::{self, COPY_EXIT_STATUS};

use super::{CopyTarget, POLL_INTERVAL, process_gone_refusal, read_proc_file, threads};
use crate::error::Error;

/// Longest wait until the child is reaped.
const REAP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks whether the child is reaped.
const REAP_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Longest wait until a copy has released its memory, and another memprof is done with the process.
const COPIES_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait until a killed copy begins to end: one that runs for longer is a child of the program itself.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait until a thread that was about to call clone(2) has made its copy, which then ends at once.
const LATE_CLONE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two checks for such a copy.
const LATE_CLONE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// End of the memprof whose copies are reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// It ended normally, and reaped its copies as far as it could.
    Done,
    /// It was killed at any moment: a copy may still be made.
    Killed,
}

/// Reaps the copies of a process that another memprof has left behind. `since` is their earliest start time, in clock
/// ticks since boot (`starttime` of proc(5)). Blocks up to a minute until no copy remains. A child that still runs
/// after a second is one of the program itself, and does not count. If that memprof was killed (`end`), also waits two
/// seconds for a copy that may still be made. Returns the number of copies that remain.
pub fn reap_copies(pid: u32, since: u64, end: SearchEnd) -> usize {
    let start = Instant::now();
    loop {
        let elapsed = start.elapsed();
        let mut remaining = list_copies(pid, since);
        remaining.retain(|(_, life)| *life != CopyLife::Running || elapsed < KILL_TIMEOUT);
        let is_awaited = end == SearchEnd::Killed && elapsed < LATE_CLONE_TIMEOUT;
        if remaining.is_empty() && is_awaited && process_exists(pid) {
            thread::sleep(LATE_CLONE_POLL_INTERVAL);
            continue;
        }
        if remaining.is_empty() || elapsed > COPIES_TIMEOUT {
            return remaining.len();
        }
        remaining.retain(|(_, life)| *life == CopyLife::Zombie);
        // A failure is temporary: another memprof uses the process, or none of its threads is at a safe point.
        if !remaining.is_empty()
            && let Ok(target) = CopyTarget::inspect(pid)
        {
            for (copy, _) in remaining {
                let status = ProcStatus::read_thread(copy).map_err(Error::from);
                // The next iteration tries again.
                let _ = status.and_then(|status| target.reap_child(&status, copy, None));
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// State of a copy that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyLife {
    /// It runs, or it is a child of the program itself.
    Running,
    Ending,
    Zombie,
}

/// Pids and states of the children of a process that are copies of it. `since` is their earliest start time, in clock
/// ticks since boot (`starttime` of proc(5)).
fn list_copies(pid: u32, since: u64) -> Vec<(u32, CopyLife)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let copies = pids.filter_map(|child: u32| {
        let text = fs::read(format!("/proc/{child}/stat")).ok()?;
        let life = life_of_copy(&ProcStat::parse(&text).ok()?, pid, since)?;
        Some((child, life))
    });
    copies.collect()
}

/// State of a copy. `None` for a process that is no copy. A copy is a child of `parent`, started at `since` or later,
/// that has executed no program, and whose end no signal reports. If it has ended, it has the exit code of a copy;
/// children of the program itself have others.
fn life_of_copy(stat: &ProcStat, parent: u32, since: u64) -> Option<CopyLife> {
    // Wait status of a copy that ran after all, because its memprof was killed, and so exited at once.
    const RESUMED: i32 = (COPY_EXIT_STATUS as i32) << 8;
    let is_candidate = stat.parent == parent
        && stat.start_time >= since
        && stat.exit_signal == Some(0)
        && stat.has_never_executed();
    match stat.exit_code.filter(|_| is_candidate)? {
        libc::SIGKILL | RESUMED if stat.is_zombie => Some(CopyLife::Zombie),
        libc::SIGKILL | RESUMED => Some(CopyLife::Ending),
        // Before the end, the field is the code of the last stop under ptrace(2).
        _ if !stat.is_zombie => Some(CopyLife::Running),
        _ => None,
    }
}

/// Whether a process exists, also if it is a zombie.
pub(super) fn process_exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

impl CopyTarget {
    /// Makes the process wait for the zombie of a snapshot, because only the parent can. Blocks up to five seconds.
    /// `Ok` does not say that the zombie is gone: the caller checks it. `copy` is memprof's handle of the child, which
    /// has ended. Dropping it hands the zombie to the parent, so that is done only while the threads that wait for
    /// children of any kind are stopped: they would take it for a child of the program's. Fails if the process has
    /// ended or executes another program, or the call cannot be made.
    pub(super) fn reap_child(
        &self,
        child: &ProcStatus,
        child_pid: u32,
        mut copy: Option<ProcessCopy>,
    ) -> Result<(), Error> {
        // The process knows the child by its number in their pid namespace.
        let Some(own_number) = child.ns_pids.last() else {
            return Ok(());
        };
        // `__WALL` includes a child without an exit signal (wait(2)); `WNOHANG` keeps the thread from blocking.
        let options = (libc::__WALL | libc::WNOHANG) as u64;
        let wait = remote_call::RemoteCall::Syscall(
            libc::SYS_wait4,
            [u64::from(*own_number), 0, options, 0, 0, 0],
        );
        let start = Instant::now();
        while start.elapsed() < REAP_TIMEOUT {
            if !self.is_same_program() {
                return Err(process_gone_refusal(self.pid).into());
            }
            let maps = read_proc_file(self.pid, "maps")?;
            let mut threads = threads::stop_reaping_threads(self.pid)?;
            if let Ok((thread, stopped)) =
                threads.pick_thread(|thread| self.has_frame_memory(&maps, thread))
            {
                let context = thread.saved_context();
                let calls = None;
                let memory = self.frame_memory_end(&maps, &context, thread.tid);
                let saved = memory.ok_or(Error::NoThread("its stacks have no room"))?;
                let locations = remote_call::FrameLocations { saved, calls };
                let frames =
                    remote_call::build_frames(&[wait], locations, u64::MAX, self.gadgets, &context);
                for (address, bytes) in &frames.writes {
                    let written = self.memory.write(*address, bytes);
                    written.map_err(Error::with_action("failed to write to a stack"))?;
                }
                drop(copy.take());
                stopped
                    .detach_into_remote_call(&frames.registers)
                    .map_err(Error::with_action("failed to let it reap"))?;
                while start.elapsed() < REAP_TIMEOUT && process_exists(child_pid) {
                    thread::sleep(REAP_POLL_INTERVAL);
                }
                return Ok(());
            }
            drop(threads);
            thread::sleep(REAP_POLL_INTERVAL);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_child_of_program_is_no_copy() {
        let (parent, since) = (7, 4711);
        let check = |state: &str, exit_signal: i32, flags: u64, start: u64, code: i32, expected| {
            let mut fields = vec!["0".to_owned(); 50];
            let mut set = |number: usize, value: String| fields[number - 3] = value;
            set(3, state.to_owned());
            set(4, parent.to_string());
            set(9, flags.to_string());
            set(22, start.to_string());
            set(38, exit_signal.to_string());
            set(52, code.to_string());
            let stat = ProcStat::parse(format!("8 (web) {}", fields.join(" ")).as_bytes()).unwrap();
            assert_eq!(life_of_copy(&stat, parent, since), expected, "{stat:?}");
            assert_eq!(life_of_copy(&stat, parent + 1, since), None);
        };
        let (never_executed, killed, resumed) = (0x40, 9, 109 << 8);
        check(
            "Z",
            0,
            never_executed,
            since,
            killed,
            Some(CopyLife::Zombie),
        );
        check(
            "Z",
            0,
            never_executed,
            since + 1,
            resumed,
            Some(CopyLife::Zombie),
        );
        check(
            "R",
            0,
            never_executed,
            since,
            killed,
            Some(CopyLife::Ending),
        );
        let event_stop = libc::SIGTRAP | libc::PTRACE_EVENT_STOP << 8;
        for code in [0, event_stop] {
            check("R", 0, never_executed, since, code, Some(CopyLife::Running));
        }
        check("Z", libc::SIGCHLD, never_executed, since, killed, None);
        check("Z", -1, never_executed, since, killed, None);
        check("Z", 0, 0, since, killed, None);
        check("Z", 0, never_executed, since - 1, killed, None);
        for own in [0, 1 << 8, libc::SIGTERM, libc::SIGSEGV | 0x80] {
            check("Z", 0, never_executed, since, own, None);
        }
    }
}
