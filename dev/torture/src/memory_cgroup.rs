//! A memory cgroup of our own.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A memory cgroup; removed when dropped, after the processes in it have ended.
#[derive(Debug)]
pub(super) struct MemoryCgroup {
    path: PathBuf,
    files: Files,
}

/// The names of its files.
#[derive(Clone, Copy, Debug)]
struct Files {
    usage: &'static str,
    limit: &'static str,
    /// The line of memory.stat with what the kernel may take back at once.
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
    /// Makes one; none where this process may not, or the kernel counts no memory.
    pub(super) fn make() -> Option<Self> {
        let name = format!("memprof-torture-{}", std::process::id());
        let places = [
            ("/sys/fs/cgroup/memory", VERSION_1),
            ("/sys/fs/cgroup", VERSION_2),
        ];
        places.into_iter().find_map(|(root, files)| {
            let path = Path::new(root).join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self { path, files };
            group.usage().ok()?;
            Some(group)
        })
    }

    /// A command that runs another one in the group.
    pub(super) fn wrapper(&self) -> Vec<String> {
        let enter = format!(
            "echo $$ > {}/cgroup.procs && exec \"$@\"",
            self.path.display()
        );
        ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec()
    }

    /// What its processes use, their page cache with it.
    pub(super) fn usage(&self) -> Result<u64> {
        Ok(self.read(self.files.usage)?.trim().parse()?)
    }

    /// Lets them have `spare` bytes more than what they use and the kernel cannot take back.
    pub(super) fn set_headroom(&self, spare: u64) -> Result<()> {
        let stat = self.read("memory.stat")?;
        let inactive = stat
            .lines()
            .find_map(|line| line.strip_prefix(self.files.inactive));
        let inactive: u64 = inactive.context(self.files.inactive)?.parse()?;
        let used = self.usage()?.saturating_sub(inactive);
        self.limit(&(used + spare).to_string())
    }

    fn read(&self, name: &str) -> Result<String> {
        let file = self.path.join(name);
        fs::read_to_string(&file).with_context(|| file.display().to_string())
    }

    pub(super) fn unlimit(&self) -> Result<()> {
        self.limit(self.files.unlimited)
    }

    pub(super) fn limit(&self, limit: &str) -> Result<()> {
        let file = self.path.join(self.files.limit);
        fs::write(&file, limit).with_context(|| format!("{}: {limit}", file.display()))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let begun = Instant::now();
        // A process that was killed is gone a moment later.
        while let Err(error) = fs::remove_dir(&self.path) {
            if begun.elapsed() > Duration::from_secs(5) {
                eprintln!("failed to remove {}: {error}", self.path.display());
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
