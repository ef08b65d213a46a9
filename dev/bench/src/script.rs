//! Scripts for sh(1) that ask memprof of target/dist, or prepare what it is asked about.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use xtask::dist::dist_dir;

/// Exit status and text of a script.
#[derive(Debug)]
pub struct ScriptEnd {
    /// Exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// Text of stdout and stderr, in the order in which it was written.
    pub text: String,
}

/// A running script; dropping it kills its process group.
#[derive(Debug)]
pub struct Script {
    shell: Child,
    log: NamedTempFile,
}

impl Script {
    /// Starts `sh` with an option and a script in `directory`, in a process group of its own. `memprof` is in the path,
    /// its sockets and dumps are in `directory`, and `$PLUGIN` is the plugin's file; `variables` are set, too. The
    /// script is killed after `timeout`, which counts in whole seconds.
    ///
    /// # Errors
    /// timeout(1) or a temporary file is missing.
    pub fn start(
        option: &str,
        script: &str,
        directory: &Path,
        timeout: Duration,
        variables: &[(&str, &OsStr)],
    ) -> Result<Self> {
        // A pipe would stay open as long as what the script left running.
        let log = NamedTempFile::new()?;
        let mut path = dist_dir().join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").context("no PATH")?);
        // Both outputs share one file offset, so that neither overwrites the other.
        let output = log.reopen()?;
        let shell = Command::new("timeout")
            .args(["--kill-after=5", &timeout.as_secs().to_string()])
            .args(["sh", option, script])
            .current_dir(directory)
            .env("PATH", path)
            .env("PLUGIN", dist_dir().join("plugins/memory_profile.so"))
            .env("MEMPROF_SOCKET_DIR", directory.join("run"))
            .env("XDG_STATE_HOME", directory.join("state"))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .context("timeout(1)")?;
        Ok(Self { shell, log })
    }

    /// Waits for the script's end. Leaves its process as a zombie, so that the ID of its group is not reused before the
    /// group is killed. A script that fails is no error.
    ///
    /// # Errors
    /// The text cannot be read.
    pub fn wait_for_end(&self) -> Result<ScriptEnd> {
        let shell = Id::Pid(Pid::from_raw(self.shell.id().cast_signed()));
        let end = waitid(shell, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)?;
        Ok(ScriptEnd {
            status: match end {
                WaitStatus::Exited(_, status) => Some(status),
                _ => None,
            },
            text: String::from_utf8_lossy(&fs::read(self.log.path())?).into_owned(),
        })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.shell.id().cast_signed());
        // Fails if no process of the group is left.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.shell.wait();
    }
}
