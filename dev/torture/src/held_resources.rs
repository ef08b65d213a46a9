//! Resources of a process that memprof could leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use memprof_ptrace::maps::mappings;
use testkit::processes::threads;

/// Time until a program's own threads and descriptors are as before.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Descriptors with their targets, names of threads, timers, and named mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldResources {
    descriptors: BTreeSet<String>,
    threads: Vec<String>,
    timers: String,
    mapped: BTreeSet<String>,
}

impl HeldResources {
    /// Reads the resources again and again until two reads are equal, but for [`SETTLE_TIMEOUT`] at most, and returns
    /// the last read. Unless `has_own_threads`, only memprof's threads count, because runtimes and servers start
    /// threads at any time.
    pub(crate) fn read_settled(pid: u32, has_own_threads: bool) -> Result<Self> {
        let start = Instant::now();
        let mut held = Self::read(pid, has_own_threads)?;
        loop {
            thread::sleep(POLL_INTERVAL);
            let again = Self::read(pid, has_own_threads)?;
            if again == held || start.elapsed() > SETTLE_TIMEOUT {
                return Ok(again);
            }
            held = again;
        }
    }

    /// Reads the resources once, without the program's own sockets and the plugin's code, which stays mapped. Unless
    /// `has_own_threads`, only memprof's threads count.
    fn read(pid: u32, has_own_threads: bool) -> Result<Self> {
        let mut held = Self::default();
        let sockets = fs::read_to_string(format!("/proc/{pid}/net/unix"))?;
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            // The descriptor may have been closed since.
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let number = entry.file_name();
            let target = target.display().to_string();
            if is_program_socket(&target, &sockets) {
                continue;
            }
            held.descriptors
                .insert(format!("{} -> {target}", number.display()));
        }
        held.threads = threads(pid)?.into_iter().map(|(_, name)| name).collect();
        if !has_own_threads {
            held.threads.retain(|name| name.starts_with("memprof"));
        }
        held.threads.sort();
        held.timers = fs::read_to_string(format!("/proc/{pid}/timers"))?;
        let maps = fs::read(format!("/proc/{pid}/maps"))?;
        let names = mappings(&maps).map(|each| String::from_utf8_lossy(each.path).into_owned());
        // The plugin's code stays mapped.
        held.mapped = names
            .filter(|name| !name.is_empty() && !name.contains("memory_profile.so"))
            .collect();
        Ok(held)
    }

    /// Waits until a process has these resources again, for which its own threads may need some time. Fails, with the
    /// differences, after [`SETTLE_TIMEOUT`]. `has_own_threads` must be that of the read that returned these resources.
    pub(crate) fn wait_until_restored(&self, pid: u32, has_own_threads: bool) -> Result<()> {
        let start = Instant::now();
        loop {
            let now = Self::read(pid, has_own_threads)?;
            if now == *self {
                return Ok(());
            }
            ensure!(
                start.elapsed() < SETTLE_TIMEOUT,
                "LEFT: {}",
                self.differences(&now).join("; ")
            );
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Describes the resources that `now` has more or less than these. Empty if they are equal.
    fn differences(&self, now: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        let pairs = [
            ("descriptors", &self.descriptors, &now.descriptors),
            ("mappings", &self.mapped, &now.mapped),
        ];
        for (name, before, after) in pairs {
            let more: Vec<_> = after.difference(before).collect();
            let less: Vec<_> = before.difference(after).collect();
            if before != after {
                differences.push(format!("{name}: more {more:?}, less {less:?}"));
            }
        }
        if self.threads != now.threads {
            differences.push(format!(
                "threads {:?}, were {:?}",
                now.threads, self.threads
            ));
        }
        if self.timers != now.timers {
            differences.push(format!("timers {:?}, were {:?}", now.timers, self.timers));
        }
        differences
    }
}

/// Whether a descriptor with this target, as its link in /proc names it, is a socket of the program, not of the plugin.
/// `sockets` is /proc/PID/net/unix, in which the plugin's socket and connections have a path with `memprof`.
fn is_program_socket(target: &str, sockets: &str) -> bool {
    let inode = target.strip_prefix("socket:[");
    let Some(inode) = inode.and_then(|inode| inode.strip_suffix(']')) else {
        return false;
    };
    !sockets.lines().any(|line| {
        // The inode is the seventh column, the path the eighth and last (proc_pid_net(5)).
        let mut words = line.split_ascii_whitespace().skip(6);
        words.next() == Some(inode) && words.next().is_some_and(|path| path.contains("memprof"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memprof_sockets_count() {
        let sockets = "0000: 00000002 00000000 00010000 0001 01 17 /tmp/memprof-0/9.sock\n\
                       0000: 00000002 00000000 00000000 0001 03 18\n\
                       0000: 00000002 00000000 00000000 0001 03 19 /run/other.sock\n";
        let check = |target: &str, expected: bool| {
            assert_eq!(is_program_socket(target, sockets), expected, "{target}");
        };
        check("socket:[17]", false);
        check("socket:[18]", true);
        check("socket:[19]", true);
        check("socket:[20]", true);
        check("anon_inode:[eventfd]", false);
        check("/memfd:memprof (deleted)", false);
    }
}
