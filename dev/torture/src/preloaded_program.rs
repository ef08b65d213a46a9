//! A program that knows nothing of memprof, under `memprof run`: `guest.c`, ended when dropped.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_host::client::Client;

use super::host::{PATIENCE, connect};
use super::host_dir::HostDir;
use xtask::dist::dist;

/// Between two looks whether its socket is open.
const LOOK: Duration = Duration::from_millis(2);

/// A running guest.
#[derive(Debug)]
pub(super) struct PreloadedProgram {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    place: HostDir,
}

impl PreloadedProgram {
    /// Starts a program of `target/dist/torture`, sampling from the start, and waits until memprof
    /// reaches it.
    pub(super) fn start(program: &str, args: &[&str]) -> Result<Self> {
        Self::start_with(program, args, |_| {})
    }

    /// The same, with whatever `change` does to the command.
    pub(super) fn start_with(
        program: &str,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let place = HostDir::new()?;
        let mut command = Command::new(dist().join("bin/memprof"));
        command
            .args(["run", "--allocator", "jemalloc", "--active"])
            .args(["--lg-sample", "13", "--"])
            .arg(dist().join("torture").join(program))
            .args(args)
            .env("MEMPROF_SOCKET_DIR", place.path().join("run"))
            .env("MEMPROF_DUMP_DIR", place.dumps())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command
            .spawn()
            .with_context(|| format!("failed to start {command:?}"))?;
        let mut guest = Self {
            input: child.stdin.take().context("stdin is piped")?,
            output: BufReader::new(child.stdout.take().context("stdout is piped")?),
            child,
            place,
        };
        guest.expect_line("ready")?;
        let begun = Instant::now();
        while Client::connect(&guest.socket()).is_err() {
            guest.check_alive()?;
            ensure!(begun.elapsed() < PATIENCE, "memprof does not come");
            thread::sleep(LOOK);
        }
        Ok(guest)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn socket(&self) -> PathBuf {
        let name = format!("{}.sock", self.child.id());
        self.place.path().join("run").join(name)
    }

    /// A connection on which an answer that does not come is an error.
    pub(super) fn client(&self) -> Result<Client> {
        connect(&self.socket())
    }

    /// Has it do something.
    pub(super) fn send_line(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").with_context(|| line.to_owned())
    }

    /// Its next line.
    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the guest ended: {}", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    /// Waits for a line, which must be the next one.
    pub(super) fn expect_line(&mut self, expected: &str) -> Result<()> {
        let line = self.line()?;
        ensure!(
            line == expected,
            "the guest says {line:?}, not {expected:?}"
        );
        Ok(())
    }

    /// Fails when it has ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the guest died: {status}"),
        }
    }

    /// Waits until it has ended; none when it does not.
    pub(super) fn ends_within(&mut self, time: Duration) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > time {
                return Ok(ended);
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for PreloadedProgram {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("failed to end the guest: {error}");
        }
    }
}
