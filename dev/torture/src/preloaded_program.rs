//! A program that was not built for memprof, under `memprof run`: mostly `guest.c`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_host::client::Client;
use testkit::LineReader;
use testkit::processes::wait_for_exit;

use super::host::{REPLY_TIMEOUT, connect};
use super::host_dir::HostDir;
use xtask::dist::dist_dir;

/// Interval of polls for the socket.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running program with the plugin preloaded; dropping it kills it.
#[derive(Debug)]
pub(super) struct PreloadedProgram {
    child: Child,
    input: ChildStdin,
    output: LineReader<ChildStdout>,
    dir: HostDir,
}

impl PreloadedProgram {
    /// Starts a program of `target/dist/torture` that is sampled from the start, and waits until its control socket
    /// accepts connections.
    pub(super) fn start(program: &str, args: &[&str]) -> Result<Self> {
        Self::start_with(program, args, |_| {})
    }

    /// Like [`start`](Self::start), with the changes that `change` makes to the command.
    pub(super) fn start_with(
        program: &str,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let dir = HostDir::new()?;
        let mut command = Command::new(dist_dir().join("bin/memprof"));
        command
            .args(["run", "--allocator", "jemalloc", "--active"])
            .args(["--lg-sample", "13", "--"])
            .arg(dist_dir().join("torture").join(program))
            .args(args)
            .env("MEMPROF_SOCKET_DIR", dir.path().join("run"))
            .env("MEMPROF_DUMP_DIR", dir.dump_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command
            .spawn()
            .with_context(|| format!("failed to start {command:?}"))?;
        let mut preloaded = Self {
            input: child.stdin.take().context("stdin is piped")?,
            output: LineReader::new(child.stdout.take().context("stdout is piped")?),
            child,
            dir,
        };
        preloaded.expect_line("ready")?;
        let start = Instant::now();
        while Client::connect(&preloaded.socket()).is_err() {
            preloaded.check_alive()?;
            ensure!(
                start.elapsed() < REPLY_TIMEOUT,
                "the control socket does not open"
            );
            thread::sleep(POLL_INTERVAL);
        }
        Ok(preloaded)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the program's control socket, which has its pid as name.
    pub(super) fn socket(&self) -> PathBuf {
        let name = format!("{}.sock", self.child.id());
        self.dir.path().join("run").join(name)
    }

    /// Connects to the control socket; a reply that takes longer than [`REPLY_TIMEOUT`] is an error.
    pub(super) fn client(&self) -> Result<Client> {
        connect(&self.socket())
    }

    /// Sends a command to the program as a line of its standard input.
    pub(super) fn send_line(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").with_context(|| line.to_owned())
    }

    /// Reads the next line of the program's standard output. Fails if the program has exited, or prints no line within
    /// [`REPLY_TIMEOUT`].
    pub(super) fn read_line(&mut self) -> Result<String> {
        let line = self.output.read_line(REPLY_TIMEOUT)?;
        if line.is_empty() {
            let status = self.wait_for_exit(REPLY_TIMEOUT)?;
            bail!("the program closed its output: {status:?}");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Reads the next line, and fails unless it is `expected`.
    pub(super) fn expect_line(&mut self, expected: &str) -> Result<()> {
        let line = self.read_line()?;
        ensure!(
            line == expected,
            "the program printed {line:?}, not {expected:?}"
        );
        Ok(())
    }

    /// Fails, with its status, if the program has exited.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the program died: {status}"),
        }
    }

    /// Waits until the program exits; `None` if it still runs after `timeout`.
    pub(super) fn wait_for_exit(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        Ok(wait_for_exit(&mut self.child, timeout)?)
    }
}

impl Drop for PreloadedProgram {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("failed to kill the program: {error}");
        }
    }
}
