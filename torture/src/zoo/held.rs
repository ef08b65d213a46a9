//! What a process holds that memprof could leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use memprof_ptrace::maps::mappings;

/// How long a program's own threads and descriptors may take to be as before.
const SETTLES: Duration = Duration::from_secs(10);

/// Descriptors, by their numbers and what they lead to; names of threads; timers; mappings of files and named ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    descriptors: BTreeSet<String>,
    threads: Vec<String>,
    timers: String,
    mapped: BTreeSet<String>,
}

impl Held {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let mut held = Self::default();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            // It may be closed meanwhile.
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let number = entry.file_name();
            let text = format!("{} -> {}", number.display(), target.display());
            held.descriptors.insert(text);
        }
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            // It may have ended meanwhile.
            if let Ok(name) = fs::read_to_string(task.path().join("comm")) {
                held.threads.push(name.trim_end().to_owned());
            }
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
    pub(super) fn comes_back(&self, pid: u32) -> Result<()> {
        let begun = Instant::now();
        loop {
            let now = Self::of(pid)?;
            if now == *self {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < SETTLES,
                "LEFT: {}",
                self.differences(&now).join("; ")
            );
            thread::sleep(Duration::from_millis(20));
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
