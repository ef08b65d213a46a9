//! Descendants of a process.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use memprof_ptrace::process::ProcStatus;

/// Threads of one process of which the children are read.
const MAX_THREADS: usize = 4096;

/// Returns the pids of a process's descendants, parents before their children. Processes that end or are forked
/// meanwhile may be missing. Descendants whose parent has ended are missing too: the kernel gives them another parent.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    // The file exists unless the kernel was built without CONFIG_PROC_CHILDREN.
    match Path::new("/proc/thread-self/children").exists() {
        true => collect_descendants(pid, read_children),
        false => {
            let by_parent = children_by_parent();
            collect_descendants(pid, |parent| {
                by_parent.get(&parent).cloned().unwrap_or_default()
            })
        }
    }
}

/// Returns the process in `pids` of which all others in `pids` are descendants. `None` if there is none.
pub(crate) fn common_ancestor(pids: &[u32]) -> Option<u32> {
    let is_root = |pid: &u32| {
        let below = descendants(*pid);
        pids.iter()
            .all(|other| other == pid || below.contains(other))
    };
    pids.iter().copied().find(is_root)
}

/// Collects the descendants of a process, parents before their children. `children` returns the children of a process.
fn collect_descendants(pid: u32, children: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        for child in children(parent) {
            // A process is never its own ancestor, but with reused pids it may seem so.
            if !found.contains(&child) {
                found.push(child);
            }
        }
        next += 1;
    }
    found.split_off(1)
}

/// Reads the children that the threads of a process forked (proc(5), `children`), of at most [`MAX_THREADS`] threads.
/// Empty if the process has ended.
fn read_children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten().take(MAX_THREADS);
    let children = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("children")).ok()?;
        let pids = text.split_ascii_whitespace();
        Some(
            pids.filter_map(|pid| pid.parse().ok())
                .collect::<Vec<u32>>(),
        )
    });
    children.flatten().collect()
}

/// Reads the parents of all processes in /proc, and returns the children of each.
fn children_by_parent() -> HashMap<u32, Vec<u32>> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut by_parent: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in pids {
        if let Ok(status) = ProcStatus::read_thread(pid) {
            by_parent.entry(status.parent).or_default().push(pid);
        }
    }
    by_parent
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_and_their_children_are_found_in_both_ways() {
        let mut shell = Command::new("sh")
            .args([
                "-c",
                "exec 3<&0; sh -c 'echo $$; read line <&3' & echo $$; wait",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let pids: Vec<u32> = lines
            .take(2)
            .map(|line| line.unwrap().parse().unwrap())
            .collect();
        let parent = shell.id();
        let child: Vec<u32> = pids.into_iter().filter(|pid| *pid != parent).collect();
        assert_eq!(descendants(parent), child);
        assert_eq!(common_ancestor(&[child[0], parent]), Some(parent));
        assert_eq!(
            common_ancestor(&[child[0], std::process::id()]),
            Some(std::process::id())
        );
        assert_eq!(common_ancestor(&[child[0], 1 << 30]), None);
        let by_parent = children_by_parent();
        let children = |pid: u32| by_parent.get(&pid).cloned().unwrap_or_default();
        assert_eq!(collect_descendants(parent, children), child);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(descendants(parent), [0_u32; 0]);
    }

    #[test]
    fn circles_of_reused_pids_end() {
        let children = |pid| match pid {
            1 => vec![2, 3],
            2 => vec![1, 3],
            _ => vec![],
        };
        assert_eq!(collect_descendants(1, children), [2, 3]);
    }
}
