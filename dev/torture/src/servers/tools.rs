//! `memprof` and its plugin, where every user can read them: servers change theirs.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::super::host::REPLY_TIMEOUT;
use xtask::dist::dist;

/// What no command may take, in seconds.
const LIMIT: &str = "120";

/// Between two looks whether memprof has come.
const LOOK: Duration = Duration::from_millis(20);

/// Copies of what is installed.
#[derive(Debug)]
pub(crate) struct Tools {
    dir: TempDir,
    /// Where sockets and dumps of other users' hosts lay before.
    socket_directories: HashSet<PathBuf>,
}

impl Tools {
    pub(crate) fn install() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        for file in ["bin/memprof", "plugins/memory_profile.so"] {
            let copy = dir.path().join(file);
            fs::create_dir(copy.parent().context("a file in a directory")?)?;
            fs::copy(dist().join(file), &copy).with_context(|| file.to_owned())?;
        }
        Ok(Self {
            dir,
            socket_directories: socket_directories(),
        })
    }

    /// The copy of `memprof`.
    pub(crate) fn program(&self) -> PathBuf {
        self.dir.path().join("bin/memprof")
    }

    /// Where `name` can be written.
    pub(super) fn file(&self, name: &str) -> Result<String> {
        let path = self.dir.path().join(name);
        Ok(path.to_str().context("a path that is text")?.to_owned())
    }

    /// What executes a program under memprof, with its dumps in that directory.
    pub(super) fn wrapper(&self, dumps: &Path) -> Vec<OsString> {
        let words = [
            "run".as_ref(),
            "--dump-dir".as_ref(),
            dumps.as_os_str(),
            "--".as_ref(),
        ];
        let program = self.program().into();
        std::iter::once(program)
            .chain(words.into_iter().map(OsString::from))
            .collect()
    }

    /// A directory that only the user of the process can write to, as dumps need it.
    pub(crate) fn give_to(&self, directory: &Path, pid: u32) -> Result<()> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let effective = |field: &str| -> Result<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let id = line.and_then(|line| line.split_ascii_whitespace().nth(1));
            Ok(id.with_context(|| field.to_owned())?.parse()?)
        };
        chown(
            directory,
            Some(effective("Uid:")?),
            Some(effective("Gid:")?),
        )
        .with_context(|| directory.display().to_string())
    }

    /// Runs `memprof`, which must end with 0, and returns what it prints.
    pub(super) fn memprof(&self, args: &[&str]) -> Result<String> {
        let output = Command::new("timeout")
            .arg(LIMIT)
            .arg(self.program())
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "memprof {}: {}: {}{}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Waits until memprof reaches a process, into which its plugin was preloaded.
    pub(super) fn wait_for(&self, pid: u32) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = self.send(pid, "status", &[]) {
            if start.elapsed() > REPLY_TIMEOUT {
                return Err(error);
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Sends a message to the process, and returns the plugin's reply.
    pub(super) fn send(&self, pid: u32, message: &str, args: &[&str]) -> Result<Value> {
        let pid = pid.to_string();
        let reply = self.memprof(&[&[message, "-t", &pid, "--json"], args].concat())?;
        serde_json::from_str(&reply).with_context(|| reply)
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        for directory in socket_directories().difference(&self.socket_directories) {
            let is_store = directory.to_string_lossy().matches('-').count() > 1;
            // One with a socket is another host's, and stays.
            let _: io::Result<()> = match is_store {
                true => fs::remove_dir_all(directory),
                false => fs::remove_dir(directory),
            };
        }
    }
}

/// The directories that hosts make for their sockets, by their users' numbers, and for dumps, by their
/// programs' names too.
fn socket_directories() -> HashSet<PathBuf> {
    let entries = fs::read_dir("/tmp").into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("memprof-"))
    };
    entries.map(|entry| entry.path()).filter(is_one).collect()
}
