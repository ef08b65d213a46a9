//! What a process holds that memprof could leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use memprof_ptrace::maps::mappings;

/// How long a program's own threads and descriptors may take to be as before.
const SETTLES: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Descriptors, by their numbers and what they lead to; names of threads; timers; mappings of files and named ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldResources {
    descriptors: BTreeSet<String>,
    threads: Vec<String>,
    timers: String,
    mapped: BTreeSet<String>,
}

impl HeldResources {
    /// What it holds once it is done with its work: the same at two looks. Runtimes and servers make threads when they
    /// like, of which only memprof's count then.
    pub(crate) fn settled(pid: u32, has_own_threads: bool) -> Result<Self> {
        let start = Instant::now();
        let mut held = Self::of(pid, has_own_threads)?;
        loop {
            thread::sleep(LOOK);
            let again = Self::of(pid, has_own_threads)?;
            if again == held || start.elapsed() > SETTLES {
                return Ok(again);
            }
            held = again;
        }
    }

    fn of(pid: u32, has_own_threads: bool) -> Result<Self> {
        let mut held = Self::default();
        let sockets = fs::read_to_string(format!("/proc/{pid}/net/unix"))?;
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            // It may be closed meanwhile.
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let number = entry.file_name();
            let target = target.display().to_string();
            if is_of_program(&target, &sockets) {
                continue;
            }
            held.descriptors
                .insert(format!("{} -> {target}", number.display()));
        }
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            // It may have ended meanwhile.
            if let Ok(name) = fs::read_to_string(task.path().join("comm")) {
                held.threads.push(name.trim_end().to_owned());
            }
        }
        if !has_own_threads {
            held.threads.retain(|name| name.starts_with("memprof"));
        }
        held.threads.sort();
        held.timers = fs::read_to_string(format!("/proc/{pid}/timers"))?;
        let maps = fs::read(format!("/proc/{pid}/maps"))?;
        let names = mappings(&maps).map(|each| String::from_utf8_lossy(each.path).into_owned());
        // The plugin's code stays.
        held.mapped = names
            .filter(|name| !name.is_empty() && !name.contains("memory_profile.so"))
            .collect();
        Ok(held)
    }

    /// Waits until a process holds this again, which its own threads may only do after a while.
    pub(crate) fn comes_back(&self, pid: u32, has_own_threads: bool) -> Result<()> {
        let start = Instant::now();
        loop {
            let now = Self::of(pid, has_own_threads)?;
            if now == *self {
                return Ok(());
            }
            ensure!(
                start.elapsed() < SETTLES,
                "LEFT: {}",
                self.differences(&now).join("; ")
            );
            thread::sleep(LOOK);
        }
    }

    fn differences(&self, now: &Self) -> Vec<String> {
        let mut told = Vec::new();
        let pairs = [
            ("descriptors", &self.descriptors, &now.descriptors),
            ("mappings", &self.mapped, &now.mapped),
        ];
        for (name, before, after) in pairs {
            let more: Vec<_> = after.difference(before).collect();
            let less: Vec<_> = before.difference(after).collect();
            if before != after {
                told.push(format!("{name}: more {more:?}, less {less:?}"));
            }
        }
        if self.threads != now.threads {
            told.push(format!(
                "threads {:?}, were {:?}",
                now.threads, self.threads
            ));
        }
        if self.timers != now.timers {
            told.push(format!("timers {:?}, were {:?}", now.timers, self.timers));
        }
        told
    }
}

/// Whether a descriptor is a socket without memprof's name in `/proc/PID/net/unix`: clients come and go, and the
/// plugin's own, and connections to it, have its path.
fn is_of_program(target: &str, sockets: &str) -> bool {
    let inode = target.strip_prefix("socket:[");
    let Some(inode) = inode.and_then(|inode| inode.strip_suffix(']')) else {
        return false;
    };
    !sockets.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(6);
        words.next() == Some(inode) && words.next().is_some_and(|path| path.contains("memprof"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memprof_s_sockets_count() {
        let sockets = "0000: 00000002 00000000 00010000 0001 01 17 /tmp/memprof-0/9.sock\n\
                       0000: 00000002 00000000 00000000 0001 03 18\n\
                       0000: 00000002 00000000 00000000 0001 03 19 /run/other.sock\n";
        let check = |target: &str, expected: bool| {
            assert_eq!(is_of_program(target, sockets), expected, "{target}");
        };
        check("socket:[17]", false);
        check("socket:[18]", true);
        check("socket:[19]", true);
        check("socket:[20]", true);
        check("anon_inode:[eventfd]", false);
        check("/memfd:memprof (deleted)", false);
    }
}
