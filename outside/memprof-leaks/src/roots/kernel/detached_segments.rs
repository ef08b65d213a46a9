//! Shared memory of System V that a process has written and detached (shmdt(2)), and may attach again.

use std::collections::HashSet;
use std::fs;

use super::super::Roots;
use super::message_queues::{CLOCK_ROUNDING, start_time_in_seconds};
use crate::snapshot_memory::SnapshotMemory;
use crate::unsearched::Unsearched;

/// Notes the size of the System V segments that the process has created, or was the last to attach or detach, and has
/// not attached now. A segment counts only if that happened after the process's start, because another process may have
/// had its pid before; if the start is not known, each segment counts.
pub(super) fn note_detached_segments(pid: u32, view: &SnapshotMemory, roots: &mut Roots) {
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let started = start_time_in_seconds(pid).unwrap_or(0);
    // The inode of such a mapping is the segment's id.
    let regions = view.regions.iter();
    let attached: HashSet<u64> = regions
        .filter(|region| region.name.starts_with("/SYSV"))
        .map(|region| region.inode)
        .collect();
    let bytes: u64 = segments
        .lines()
        .filter_map(|line| detached_segment_bytes(line, pid, started, &attached))
        .sum();
    if bytes > 0 {
        roots.unsearched.push(Unsearched::for_bytes(
            bytes,
            "System V memory that is not attached",
            "to attach it would make memprof its last user",
        ));
    }
}

/// Bytes in memory and swap of a segment that is not `attached`, by its line in /proc/sysvipc/shm. `None` unless
/// process `pid` created it, or was the last to attach or detach it, since second `started`. Also `None` for lines of
/// another form. The columns are key, shmid, perms, size, cpid, lpid, nattch, uid, gid, cuid, cgid, atime, dtime,
/// ctime, rss and swap.
fn detached_segment_bytes(
    line: &str,
    pid: u32,
    started: u64,
    attached: &HashSet<u64>,
) -> Option<u64> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let number = |index: usize| columns.get(index)?.parse::<u64>().ok();
    // An earlier process may have had the pid.
    let is_since_start = |time: u64| time + CLOCK_ROUNDING >= started;
    let is_creator = number(4)? == u64::from(pid) && is_since_start(number(13)?);
    let last_use = number(11)?.max(number(12)?);
    let is_last_user = number(5)? == u64::from(pid) && is_since_start(last_use);
    let is_attached = attached.contains(&number(1)?);
    ((is_creator || is_last_user) && !is_attached).then_some(number(14)? + number(15)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detached_segment_counts_for_its_users() {
        let line = "0 5 600 8192 4711 4712 0 0 0 0 0 900 1000 1000 4096 8192";
        let check = |pid, started, attached: &[u64], expected| {
            let attached = attached.iter().copied().collect();
            let found = detached_segment_bytes(line, pid, started, &attached);
            assert_eq!(found, expected, "{pid} {started}");
        };
        check(4711, 1000, &[], Some(12288));
        check(4712, 1000, &[4], Some(12288));
        check(4713, 1000, &[], None);
        check(4711, 1000, &[5], None);
        // Used by an earlier process of that pid.
        check(4711, 1010, &[], None);
        let header = "key shmid perms size cpid lpid nattch";
        assert_eq!(detached_segment_bytes(header, 1, 0, &HashSet::new()), None);
    }
}
