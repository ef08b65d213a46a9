//! Copies of `memprof` and its plugin that every user can read, because servers change their user.

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
use testkit::processes::status_field;
use xtask::dist::dist_dir;
use xtask::run::copy_program;

/// Timeout of a command, in seconds.
const COMMAND_TIMEOUT: &str = "120";

/// Interval of polls for a host's reply.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Directory with the copies; dropping it removes them and the directories of other users' hosts.
#[derive(Debug)]
pub(crate) struct Tools {
    dir: TempDir,
    /// Directories of sockets and dumps that existed before.
    host_directories: HashSet<PathBuf>,
}

impl Tools {
    /// Copies `memprof` and its plugin to a new directory that all users can read. Notes the hosts' directories in
    /// /tmp, so that the drop removes only later ones.
    pub(crate) fn install() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        for file in ["bin/memprof", "plugins/memory_profile.so"] {
            let copy = dir.path().join(file);
            fs::create_dir(copy.parent().context("a file in a directory")?)?;
            copy_program(&dist_dir().join(file), &copy)?;
        }
        Ok(Self {
            dir,
            host_directories: host_directories(),
        })
    }

    /// Returns the path of the copy of `memprof` that all users can execute.
    pub(crate) fn program(&self) -> PathBuf {
        self.dir.path().join("bin/memprof")
    }

    /// Returns the path of a file in the directory of the copies. Fails if the path is not UTF-8.
    pub(super) fn file_path(&self, name: &str) -> Result<String> {
        let path = self.dir.path().join(name);
        Ok(path.to_str().context("a path that is text")?.to_owned())
    }

    /// Arguments to put before a command, so that it runs under `memprof run` with its dumps in the directory `dumps`.
    pub(super) fn wrapper(&self, dumps: &Path) -> Vec<OsString> {
        let args = [
            "run".as_ref(),
            "--dump-dir".as_ref(),
            dumps.as_os_str(),
            "--".as_ref(),
        ];
        let program = self.program().into();
        std::iter::once(program)
            .chain(args.into_iter().map(OsString::from))
            .collect()
    }

    /// Changes the owner and the group of a directory to the effective ones of the process, which writes its dumps
    /// there.
    pub(crate) fn chown_to_process_user(&self, directory: &Path, pid: u32) -> Result<()> {
        let effective = |field: &str| -> Result<u32> {
            let ids = status_field(pid, field)?;
            // Real, effective, saved and file system id (proc(5)).
            let id = ids.split_ascii_whitespace().nth(1);
            Ok(id.with_context(|| field.to_owned())?.parse()?)
        };
        chown(
            directory,
            Some(effective("Uid:")?),
            Some(effective("Gid:")?),
        )
        .with_context(|| directory.display().to_string())
    }

    /// Runs the copy of `memprof` with these arguments, and returns its standard output.
    ///
    /// # Errors
    /// The exit code is not 0, or the command takes longer than [`COMMAND_TIMEOUT`].
    pub(super) fn run_memprof(&self, args: &[&str]) -> Result<String> {
        let output = Command::new("timeout")
            .arg(COMMAND_TIMEOUT)
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

    /// Waits until a process with the preloaded plugin replies. Fails after [`REPLY_TIMEOUT`].
    pub(super) fn wait_for_reply(&self, pid: u32) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = self.send(pid, "status", &[]) {
            if start.elapsed() > REPLY_TIMEOUT {
                return Err(error);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Sends a message to the process by a command of the copy of `memprof`, with `--json`, and returns the reply.
    pub(super) fn send(&self, pid: u32, message: &str, args: &[&str]) -> Result<Value> {
        let pid = pid.to_string();
        let reply = self.run_memprof(&[&[message, "-t", &pid, "--json"], args].concat())?;
        serde_json::from_str(&reply).with_context(|| reply)
    }
}

impl Drop for Tools {
    /// Removes the directories of hosts that appeared in /tmp since `install`; those with a socket of another host
    /// stay.
    fn drop(&mut self) {
        for directory in host_directories().difference(&self.host_directories) {
            // A dump directory has a second dash, before the program's name.
            let is_store = directory.to_string_lossy().matches('-').count() > 1;
            // remove_dir fails on a directory with a socket, which is another host's.
            let _: io::Result<()> = match is_store {
                true => fs::remove_dir_all(directory),
                false => fs::remove_dir(directory),
            };
        }
    }
}

/// Directories of hosts in /tmp: for sockets, with the user id in the name, and for dumps, with the program's name too.
fn host_directories() -> HashSet<PathBuf> {
    let entries = fs::read_dir("/tmp").into_iter().flatten().flatten();
    let is_host_dir = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("memprof-"))
    };
    entries
        .map(|entry| entry.path())
        .filter(is_host_dir)
        .collect()
}
