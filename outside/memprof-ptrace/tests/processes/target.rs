//! A process to be looked at: see target.c.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A running process, ended when dropped.
#[derive(Debug)]
pub(crate) struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The process that is meant: itself, or a child of its.
    pub(crate) pid: u32,
}

impl Target {
    /// Brings a process of the usual program into that state.
    pub(crate) fn new(state: &[&str]) -> Self {
        Self::of(Self::command().args(state))
    }

    /// The usual program: target.c, compiled.
    pub(crate) fn command() -> Command {
        Command::new(built("target", |path| {
            let mut command = Command::new("cc");
            command.args([
                "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "target.c", "-o",
            ]);
            command.arg(path);
            command
        }))
    }

    /// Starts a program that says that it is ready.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut target = Self::start(command);
        let ready = target.line();
        let mut words = ready.split_whitespace();
        assert_eq!(words.next(), Some("ready"), "{command:?}");
        if let Some(pid) = words.next() {
            target.pid = pid.parse().unwrap();
        }
        target
    }

    /// Starts a program.
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            pid: child.id(),
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.input.write_all(bytes).unwrap();
        self.input.flush().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid.cast_signed()), signal).unwrap();
    }

    /// It must answer as before.
    pub(crate) fn is_unharmed(&mut self) {
        self.write(b"still there?\n");
        assert_eq!(self.line(), "still there?\n", "{self:?}");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A file of that name that a command makes at a path, from what lies beside this file.
pub(crate) fn built(name: &str, command: impl FnOnce(&Path) -> Command) -> PathBuf {
    static PLACE: OnceLock<TempDir> = OnceLock::new();
    let place = PLACE.get_or_init(|| tempfile::tempdir().unwrap());
    // Tests run side by side: each makes a file of its own, and the last one stays.
    let own = tempfile::tempdir_in(place).unwrap();
    let mut command = command(&own.path().join(name));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes"));
    let status = command.status();
    let status = status.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `cargo xtask test` installs what is needed")
    });
    assert!(status.success(), "{command:?}");
    let path = place.path().join(name);
    std::fs::rename(own.path().join(name), &path).unwrap();
    path
}
