//! A command that ran to its end.

use std::process::{Command, Output};

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
