//! A process under test: see target.c.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A running process, killed when dropped.
#[derive(Debug)]
pub(crate) struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Pid of the process under test: the started one, or a child of it.
    pub(crate) pid: u32,
}

impl Target {
    /// Starts the usual program and waits until it is in the state.
    pub(crate) fn new(state: &[&str]) -> Self {
        Self::from_command(Self::command().args(state))
    }

    /// Command of the usual program, the compiled target.c.
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

    /// Starts a program and waits until it reports that it is ready.
    pub(crate) fn from_command(command: &mut Command) -> Self {
        let mut target = Self::start(command);
        let ready = target.line();
        let mut words = ready.split_whitespace();
        assert_eq!(words.next(), Some("ready"), "{command:?}");
        if let Some(pid) = words.next() {
            target.pid = pid.parse().unwrap();
        }
        target
    }

    /// Starts a program without waiting.
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

    /// Fails unless the process replies as before.
    pub(crate) fn assert_unharmed(&mut self) {
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

/// Returns the path of a file that a command creates from the sources beside this file.
pub(crate) fn built(name: &str, command: impl FnOnce(&Path) -> Command) -> PathBuf {
    static PLACE: OnceLock<TempDir> = OnceLock::new();
    let place = PLACE.get_or_init(|| tempfile::tempdir().unwrap());
    // Tests run in parallel: each creates its own file, and the last one stays.
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
