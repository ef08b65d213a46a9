//! Zombies: a copy that has ended stays one until its parent waits for it. The parent is the process that was copied,
//! which knows nothing of it: no signal reports its end, so that no handler of the program runs.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::process::{ProcStat, ProcStatus};
use memprof_ptrace::remote_call::{self, COPY_EXIT_STATUS};

use super::{CopyTarget, POLL_INTERVAL, process_gone_refusal, read, threads};
use crate::error::Error;

/// Until the child is reaped.
const REAP_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Until a copy has given back its memory, and another memprof is done with the process.
const COPIES_TIMEOUT: Duration = Duration::from_secs(60);
/// Until a copy that the kernel kills begins to end: one that runs for longer is a child of the program's own.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Until a thread that was on its way to clone(2) has made its copy, which then ends at once.
const LATE_CLONE_TIMEOUT: Duration = Duration::from_secs(2);
const LATE_CLONE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How a memprof ended whose copies are reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// It reaped them itself as far as it could.
    Done,
    /// At any moment: a copy may yet be made.
    Killed,
}

/// Reaps the copies of a process that another memprof has left, made since `since` (`starttime` of proc(5)). Waits up to
/// a minute for those that have not ended yet. Returns how many are left.
pub fn reap_copies(pid: u32, since: u64, end: SearchEnd) -> usize {
    let begun = Instant::now();
    loop {
        let elapsed = begun.elapsed();
        let mut left = copies(pid, since);
        left.retain(|(_, life)| *life != CopyLife::Running || elapsed < KILL_TIMEOUT);
        let is_awaited = end == SearchEnd::Killed && elapsed < LATE_CLONE_TIMEOUT;
        if left.is_empty() && is_awaited && is_alive(pid) {
            thread::sleep(LATE_CLONE_POLL_INTERVAL);
            continue;
        }
        if left.is_empty() || elapsed > COPIES_TIMEOUT {
            return left.len();
        }
        left.retain(|(_, life)| *life == CopyLife::Zombie);
        // Another memprof may be at work on the process, or no thread of it fit just now: both pass.
        if !left.is_empty()
            && let Ok(subject) = CopyTarget::inspect(pid)
        {
            for (copy, _) in left {
                let status = ProcStatus::read_thread(copy).map_err(Error::from);
                // The next turn tries again.
                let _ = status.and_then(|status| subject.reap(&status, copy));
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// How far a copy's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyLife {
    /// Or a child of the program's own.
    Running,
    Ending,
    Zombie,
}

/// The children of a process that are copies of it.
fn copies(pid: u32, since: u64) -> Vec<(u32, CopyLife)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let copies = pids.filter_map(|child: u32| {
        let text = fs::read(format!("/proc/{child}/stat")).ok()?;
        let life = copy_life(&ProcStat::parse(&text).ok()?, pid, since)?;
        Some((child, life))
    });
    copies.collect()
}

/// `None` for a process that is no copy. The program's own children whose end is reported by no signal end in other
/// ways.
fn copy_life(stat: &ProcStat, parent: u32, since: u64) -> Option<CopyLife> {
    const LET_RUN: i32 = (COPY_EXIT_STATUS as i32) << 8;
    let is_candidate = stat.parent == parent
        && stat.start_time >= since
        && stat.exit_signal == Some(0)
        && stat.has_never_executed();
    match stat.exit_code.filter(|_| is_candidate)? {
        libc::SIGKILL | LET_RUN if stat.is_zombie => Some(CopyLife::Zombie),
        libc::SIGKILL | LET_RUN => Some(CopyLife::Ending),
        // Before the end this is the code of its last stop under ptrace(2).
        _ if !stat.is_zombie => Some(CopyLife::Running),
        _ => None,
    }
}

pub(super) fn is_alive(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

impl CopyTarget {
    /// Has the process wait for the zombie that a snapshot leaves: nobody else could.
    pub(super) fn reap(&self, child: &ProcStatus, child_pid: u32) -> Result<(), Error> {
        let Some(own_number) = child.ns_pids.last() else {
            return Ok(());
        };
        let options = (libc::__WALL | libc::WNOHANG) as u64;
        let wait = remote_call::RemoteCall::Syscall(
            libc::SYS_wait4,
            [u64::from(*own_number), 0, options, 0, 0, 0],
        );
        let begun = Instant::now();
        while begun.elapsed() < REAP_PATIENCE {
            if !self.is_same() {
                return Err(process_gone_refusal(self.pid).into());
            }
            let maps = read(self.pid, "maps")?;
            let mut threads = threads::stop_one(self.pid)?;
            if let Ok((thread, stopped)) =
                threads.pick_thread(|thread| self.can_clone(&maps, thread))
            {
                let home = thread.home();
                let calls = None;
                let room = self.room(&maps, &home, thread.tid);
                let home_place = room.ok_or(Error::NoThread("its stacks have no room"))?;
                let places = remote_call::FrameLocations {
                    saved: home_place,
                    calls,
                };
                let frames =
                    remote_call::build_frames(&[wait], places, u64::MAX, self.gadgets, &home);
                for (address, bytes) in &frames.writes {
                    let written = self.memory.write(*address, bytes);
                    written.map_err(Error::io("failed to write to a stack"))?;
                }
                stopped
                    .detach_into(&frames.registers)
                    .map_err(Error::io("failed to let it reap"))?;
                while begun.elapsed() < REAP_PATIENCE && is_alive(child_pid) {
                    thread::sleep(LOOK_AGAIN);
                }
                return Ok(());
            }
            drop(threads);
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_own_child_is_no_copy() {
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
            assert_eq!(copy_life(&stat, parent, since), expected, "{stat:?}");
            assert_eq!(copy_life(&stat, parent + 1, since), None);
        };
        let (never_executed, killed, let_run) = (0x40, 9, 109 << 8);
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
            let_run,
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
