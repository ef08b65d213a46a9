//! Limits of the names that a report reads, of all its processes together: each may have files that are made to take
//! long, and a report may be of many.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::profile::Profile;

/// Time in which the names of a report are read, of all files together; a unit of debug information that was begun is
/// finished. Hostile files may be made so that each unit takes seconds.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Most bytes of names that JIT compilers wrote, of all processes.
const MAX_JIT_NAME_BYTES: usize = 64 << 20;

/// Path and build id of a mapped file.
type MappedFile = (String, Option<String>);

/// Time and memory that are left for the names of a report. Each process has an equal share of what the processes
/// before it have left. A file of several processes has the time of all of them, because it is named once.
#[derive(Debug)]
pub(crate) struct SymbolBudget {
    /// Time at which nothing more is read.
    end: Instant,
    /// Number of processes whose names are still to be read, with the one that is read now.
    processes: u32,
    /// Number of these processes that have a file mapped; without files of a single process.
    sharers: HashMap<MappedFile, u32>,
    /// Files that the process whose names are read now shares with others.
    shared: HashSet<MappedFile>,
    /// Begin and length of the share of that process.
    start: Instant,
    share: Duration,
    /// Bytes of JIT names that are left for all processes, and for that one.
    jit_name_bytes: [usize; 2],
}

impl SymbolBudget {
    /// Creates the budget of a report on the processes of these profiles, and counts which files several of them have
    /// mapped. The time begins to run now.
    pub(crate) fn new(profiles: &[Profile]) -> Self {
        let now = Instant::now();
        let mut sharers = HashMap::new();
        if profiles.len() > 1 {
            for file in profiles.iter().flat_map(mapped_files) {
                *sharers.entry(file).or_insert(0) += 1;
            }
            sharers.retain(|_, count| *count > 1);
        }
        Self {
            end: now + TIME_LIMIT,
            processes: profiles.len() as u32,
            sharers,
            shared: HashSet::new(),
            start: now,
            share: TIME_LIMIT,
            jit_name_bytes: [MAX_JIT_NAME_BYTES; 2],
        }
    }

    /// Starts the share of the next process, whose profile this is: the time and the bytes of JIT names that are left,
    /// divided equally among this process and all later ones.
    pub(super) fn begin_process(&mut self, profile: &Profile) {
        self.start = Instant::now();
        let processes = self.processes.max(1);
        self.share = self.end.saturating_duration_since(self.start) / processes;
        self.jit_name_bytes[1] = self.jit_name_bytes[0] / processes as usize;
        if !self.sharers.is_empty() {
            self.shared = mapped_files(profile);
            self.shared.retain(|file| self.sharers.contains_key(file));
        }
    }

    /// Ends the share of the current process: the time and bytes that it did not use are left for later processes.
    /// Files that it shares with later ones have one sharer less.
    pub(super) fn end_process(&mut self) {
        self.processes = self.processes.saturating_sub(1);
        for file in self.shared.drain() {
            if let Some(sharers) = self.sharers.get_mut(&file) {
                *sharers -= 1;
            }
        }
    }

    /// Number of processes that have this file mapped, of the current process and all later ones; at least 1.
    pub(super) fn sharer_count(&self, path: &str, build_id: Option<&str>) -> u32 {
        if self.sharers.is_empty() {
            return 1;
        }
        let file = (path.to_owned(), build_id.map(str::to_owned));
        self.sharers.get(&file).copied().unwrap_or(1).max(1)
    }

    /// Returns the time after which no more names are read of a file that `sharers` processes have mapped. Such a file
    /// is named once for all of them, so it has the time of all.
    pub(super) fn deadline(&self, sharers: u32) -> Instant {
        self.start + self.share * sharers.clamp(1, self.processes.max(1))
    }

    /// Returns whether the current process has used up its share of the time.
    pub(super) fn is_time_used_up(&self) -> bool {
        Instant::now() > self.deadline(1)
    }

    /// Subtracts the bytes of a name of JIT code. Returns false, and subtracts nothing, if fewer bytes are left: then
    /// the name must not be kept.
    pub(super) fn charge_jit_name(&mut self, name: &str) -> bool {
        let is_left = self.jit_name_bytes.iter().all(|bytes| *bytes >= name.len());
        if is_left {
            for bytes in &mut self.jit_name_bytes {
                *bytes -= name.len();
            }
        }
        is_left
    }
}

/// Returns the path and build id of each file that a process has mapped.
fn mapped_files(profile: &Profile) -> HashSet<MappedFile> {
    let files = profile.mappings.iter().filter(|mapping| mapping.is_file());
    let files = files.map(|mapping| (mapping.path.clone(), mapping.build_id.clone()));
    files.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Address, Mapping};

    /// A process that has these files mapped.
    fn process(files: &[&str]) -> Profile {
        let mapping = |path: &&str| Mapping {
            start: Address(0x1000),
            end: Address(0x2000),
            path: (*path).to_owned(),
            ..Mapping::default()
        };
        Profile {
            mappings: files.iter().map(mapping).collect(),
            ..Profile::default()
        }
    }

    #[test]
    fn each_process_has_its_share_and_shared_files_that_of_all_their_processes() {
        let processes = [
            process(&["/bin/server", "/lib/one.so"]),
            process(&["/bin/server", "/lib/other.so"]),
            process(&["/bin/sleep"]),
        ];
        // Files with the thirds of the time that they have, of which little passes here.
        let expected: [&[(&str, f64)]; 3] = [
            &[("/bin/server", 2.0), ("/lib/one.so", 1.0)],
            &[("/bin/server", 1.5), ("/lib/other.so", 1.5)],
            &[("/bin/sleep", 3.0)],
        ];
        let mut budget = SymbolBudget::new(&processes);
        for (process, files) in processes.iter().zip(expected) {
            budget.begin_process(process);
            for (path, thirds) in files {
                let time = budget.deadline(budget.sharer_count(path, None)) - budget.start;
                let expected = TIME_LIMIT.mul_f64(thirds / 3.0);
                let is_near = time <= expected && time > expected.mul_f64(0.9);
                assert!(is_near, "{path}: {time:?}");
            }
            budget.end_process();
        }
    }

    #[test]
    fn names_of_jit_code_are_shared_too() {
        let processes = [process(&[]), process(&[])];
        let mut budget = SymbolBudget::new(&processes);
        let long = "x".repeat(MAX_JIT_NAME_BYTES / 4);
        let mut kept = |process: &Profile| {
            budget.begin_process(process);
            let kept = (0..6).filter(|_| budget.charge_jit_name(&long)).count();
            budget.end_process();
            kept
        };
        assert_eq!([kept(&processes[0]), kept(&processes[1])], [2, 2]);
    }
}
