//! Commands that run to their end, or within another one.

use std::ffi::OsString;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Run {
    /// -1 where a signal ended it.
    pub code: i32,
    /// Text on stdout; bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// Text on stderr, likewise.
    pub stderr: String,
}

impl Run {
    /// Runs a command to its end, and keeps its exit code and output.
    ///
    /// # Panics
    /// If the command cannot be started.
    #[track_caller]
    pub fn from_command(command: &mut Command) -> Self {
        let output = command.output();
        Self::from_output(output.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Takes the exit code and the texts from a command's output. The code is -1 if a signal ended the command.
    pub fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Parses the standard output as JSON.
    ///
    /// # Panics
    /// If the command printed none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that the exit code is `code`, and returns the run.
    ///
    /// # Panics
    /// If the command exited with another code, or a signal ended it.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// Returns the command under timeout(1), which ends it after `limit`, in whole seconds, and then exits with 124, or
/// with 137 if it had to kill it. A command without a limit would let a test that waits for it hang, and never fail.
/// The standard streams of the command are not taken over.
pub fn limit_time(command: &Command, limit: Duration) -> Command {
    let seconds = limit.as_secs().max(1).to_string();
    let timeout = ["timeout", "--kill-after=5", &seconds].map(OsString::from);
    wrap_command(command, &timeout)
}

/// Returns the command with its program and arguments after those of `wrapper`, and with its environment and directory.
/// An empty `wrapper` leaves the command as it is.
pub(crate) fn wrap_command(command: &Command, wrapper: &[OsString]) -> Command {
    let mut arguments = wrapper.to_vec();
    arguments.push(command.get_program().to_owned());
    arguments.extend(command.get_args().map(OsString::from));
    let mut wrapped = Command::new(&arguments[0]);
    wrapped.args(&arguments[1..]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        wrapped.current_dir(directory);
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_command_is_the_same_under_timeout() {
        let mut command = Command::new("memprof");
        command.args(["attach", "7"]).env("SET", "1");
        command.env_remove("REMOVED").current_dir("/tmp");
        let limited = limit_time(&command, Duration::from_secs(60));
        assert_eq!(limited.get_program(), "timeout");
        let args: Vec<_> = limited.get_args().collect();
        assert_eq!(args, ["--kill-after=5", "60", "memprof", "attach", "7"]);
        assert!(limited.get_envs().eq(command.get_envs()));
        assert_eq!(limited.get_current_dir(), command.get_current_dir());
        // 0 would be no limit for timeout(1).
        let limited = limit_time(&command, Duration::ZERO);
        assert_eq!(limited.get_args().nth(1).unwrap(), "1");
    }
}
