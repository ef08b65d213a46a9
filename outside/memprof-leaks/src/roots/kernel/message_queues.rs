//! Messages in System V queues, which may hold pointers, and which only a receiver can read.

use std::fs;

use memprof_ptrace::process::ProcStat;
use rustix::time::{ClockId, clock_gettime};

use super::super::Roots;
use crate::unsearched::Unsearched;

/// Notes how many bytes of messages wait in the System V queues to which the process was the last to send. A queue
/// counts only if that message was sent after the process's start; if the start is not known, each queue counts.
pub(super) fn note_message_queues(pid: u32, roots: &mut Roots) {
    let queues = fs::read_to_string("/proc/sysvipc/msg").unwrap_or_default();
    // An earlier process may have had the pid. Without a start time, the queue may be this process's.
    let started = start_time_in_seconds(pid).unwrap_or(0);
    let bytes: u64 = queues
        .lines()
        .filter_map(|line| queued_message_bytes(line, pid, started))
        .sum();
    if bytes > 0 {
        roots.unsearched.push(Unsearched::for_bytes(
            bytes,
            "messages in System V queues",
            "they can only be read by receiving them",
        ));
    }
}

/// Start of a process, in whole seconds since 1970 by the machine's clock as it is set now. `None` if it has ended.
pub(super) fn start_time_in_seconds(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ProcStat::parse(&stat).ok()?.start_time;
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    let boot = now - clock_gettime(ClockId::Boottime).tv_sec;
    let second = ticks / rustix::param::clock_ticks_per_second();
    boot.checked_add_unsigned(second)?.try_into().ok()
}

/// Seconds by which a message or segment may seem older than the process that used it last: the differences of clocks
/// are rounded.
pub(super) const CLOCK_ROUNDING: u64 = 2;

/// Bytes of messages in a queue, by its line in /proc/sysvipc/msg. `None` unless process `pid` was the last to send to
/// it, since second `started`. Also `None` for lines of another form. The columns are key, msqid, perms, cbytes, qnum,
/// lspid, lrpid, uid, gid, cuid, cgid, stime and more.
fn queued_message_bytes(line: &str, pid: u32, started: u64) -> Option<u64> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let number = |index: usize| columns.get(index)?.parse::<u64>().ok();
    let (bytes, sender, sent) = (number(3)?, number(5)?, number(11)?);
    (sender == u64::from(pid) && sent + CLOCK_ROUNDING >= started).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_queue_counts_for_its_last_sender() {
        let line =
            "         0          3   600         512          2   4711      0  0 0 0 0 1000 0 900";
        assert_eq!(queued_message_bytes(line, 4711, 1000), Some(512));
        assert_eq!(queued_message_bytes(line, 4712, 1000), None);
        // Sent by an earlier process of that pid.
        assert_eq!(queued_message_bytes(line, 4711, 1010), None);
        assert_eq!(
            queued_message_bytes("key msqid perms cbytes qnum lspid", 1, 0),
            None
        );
    }

    #[test]
    fn start_of_this_process_is_before_now() {
        let now = clock_gettime(ClockId::Realtime).tv_sec.unsigned_abs();
        let started = start_time_in_seconds(std::process::id()).unwrap();
        assert!(started <= now + CLOCK_ROUNDING, "{started} {now}");
        assert!(start_time_in_seconds(1).unwrap() <= started + CLOCK_ROUNDING);
    }
}
