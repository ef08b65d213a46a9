//! Running `memprof`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::dist::dist;

/// Result of a run of `memprof`.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The JSON that it printed.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the run, which must have ended with `code`.
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// Runs `memprof`, which looks for hosts in the directory `sockets`.
pub(crate) fn memprof(sockets: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(dist("bin/memprof"));
    Run::of(command.args(args).env("MEMPROF_SOCKET_DIR", sockets))
}
