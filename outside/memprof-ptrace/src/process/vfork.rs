//! Check whether a process shares its parent's memory, as it does between vfork(2) and execve(2).

use std::fs;

use nix::errno::Errno;

use super::ProcStatus;
use super::kcmp::have_same_memory;

/// Returns whether process `pid`, which has not called execve(2) since its fork, shares the memory of its parent.
/// `child` and `parent` are the statuses of both. False if this user may not compare them, or one has ended.
pub(crate) fn shares_memory_with_parent(pid: u32, child: &ProcStatus, parent: &ProcStatus) -> bool {
    match have_same_memory(pid, child.parent) {
        Ok(is_same) => is_same,
        // The kernel was built without kcmp(2).
        Err(Errno::ENOSYS) => has_same_memory_size(child, parent),
        // One process has ended, or this user may not inspect it; then memprof cannot access its memory either.
        Err(_) => false,
    }
}

/// Counts the children and the parent of process `pid` that share its memory, as after vfork(2) or clone(2) with
/// `CLONE_VM`. 0 if the kernel was built without kcmp(2).
pub fn count_memory_sharers(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let children = tasks.into_iter().flatten().flatten().flat_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        pids.collect::<Vec<u32>>()
    });
    let parent = ProcStatus::read_thread(pid)
        .ok()
        .map(|status| status.parent);
    let sharers = children.chain(parent);
    sharers
        .filter(|other| have_same_memory(pid, *other) == Ok(true))
        .count() as u64
}

/// Returns whether both have the same mapped memory (current and peak) and resident memory, as processes with shared
/// memory do. A fork that has touched nothing yet maps as much, but has less resident memory: file pages are not
/// copied.
fn has_same_memory_size(child: &ProcStatus, parent: &ProcStatus) -> bool {
    (child.size, child.resident) == (parent.size, parent.resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_kcmp_memory_sizes_are_compared() {
        let own = std::fs::read("/proc/self/status").unwrap();
        let own = ProcStatus::parse(&own).unwrap();
        assert!(has_same_memory_size(&own, &own));
        let larger = ProcStatus {
            resident: own.resident + 4096,
            ..own.clone()
        };
        assert!(!has_same_memory_size(&own, &larger));
    }
}
