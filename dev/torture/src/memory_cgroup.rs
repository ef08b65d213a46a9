//! Memory cgroups of versions 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A memory cgroup for a suite's processes; dropping it waits for their exit and removes it.
#[derive(Debug)]
pub(super) struct MemoryCgroup {
    path: PathBuf,
    files: Files,
}

/// Files and values of a cgroup version.
#[derive(Clone, Copy, Debug)]
struct Files {
    usage: &'static str,
    limit: &'static str,
    /// Prefix of the line in memory.stat with the page cache that the kernel can reclaim at once.
    inactive: &'static str,
    unlimited: &'static str,
}

const VERSION_1: Files = Files {
    usage: "memory.usage_in_bytes",
    limit: "memory.limit_in_bytes",
    inactive: "total_inactive_file ",
    unlimited: "-1",
};
const VERSION_2: Files = Files {
    usage: "memory.current",
    limit: "memory.max",
    inactive: "inactive_file ",
    unlimited: "max",
};

impl MemoryCgroup {
    /// Creates a cgroup of version 1 or, where there is none, of version 2. `None` if this process may not, or the
    /// kernel accounts no memory.
    pub(super) fn create() -> Option<Self> {
        let name = format!("memprof-torture-{}", std::process::id());
        let roots = [
            ("/sys/fs/cgroup/memory", VERSION_1),
            ("/sys/fs/cgroup", VERSION_2),
        ];
        roots.into_iter().find_map(|(root, files)| {
            let path = Path::new(root).join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self { path, files };
            group.usage().ok()?;
            Some(group)
        })
    }

    /// Arguments to put before a command: a shell that moves itself into the cgroup and then executes the command.
    pub(super) fn wrapper(&self) -> Vec<String> {
        let enter = format!(
            "echo $$ > {}/cgroup.procs && exec \"$@\"",
            self.path.display()
        );
        ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec()
    }

    /// Memory in use, page cache included, in bytes.
    pub(super) fn usage(&self) -> Result<u64> {
        Ok(self.read(self.files.usage)?.trim().parse()?)
    }

    /// Sets the limit to `bytes` more than the memory in use that the kernel cannot reclaim at once.
    pub(super) fn set_headroom(&self, bytes: u64) -> Result<()> {
        let stat = self.read("memory.stat")?;
        let inactive = stat
            .lines()
            .find_map(|line| line.strip_prefix(self.files.inactive));
        let inactive: u64 = inactive.context(self.files.inactive)?.parse()?;
        let used = self.usage()?.saturating_sub(inactive);
        self.set_limit(&(used + bytes).to_string())
    }

    /// Reads one of the kernel's files about the cgroup.
    fn read(&self, name: &str) -> Result<String> {
        let file = self.path.join(name);
        fs::read_to_string(&file).with_context(|| file.display().to_string())
    }

    /// Lets the cgroup use all memory of the machine again.
    pub(super) fn remove_limit(&self) -> Result<()> {
        self.set_limit(self.files.unlimited)
    }

    /// Writes the limit as the kernel's file takes it: a number of bytes, or a word for no limit.
    pub(super) fn set_limit(&self, limit: &str) -> Result<()> {
        let file = self.path.join(self.files.limit);
        fs::write(&file, limit).with_context(|| format!("{}: {limit}", file.display()))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let start = Instant::now();
        // A killed process leaves the cgroup a moment later.
        while let Err(error) = fs::remove_dir(&self.path) {
            if start.elapsed() > Duration::from_secs(5) {
                eprintln!("failed to remove {}: {error}", self.path.display());
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
