//! A running server.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::half_open::HalfOpenConnections;
use crate::processes::{command_contains, descendants, is_running};
use crate::psql_session::PsqlSession;
use crate::run::wrap_command;
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::ServerDir;

/// Timeout of a start, a reply, a load and a termination, long enough for a busy machine.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of polls for a condition that no event announces.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Last lines of the log that an error shows.
const MAX_LOG_LINES: usize = 15;
/// Characters of each of these lines.
const MAX_LOG_COLUMNS: usize = 200;

/// A running server; dropping it kills all of its processes.
#[derive(Debug)]
pub struct RunningServer {
    server: Server,
    dir: ServerDir,
    child: Child,
    pub(crate) session: Option<PsqlSession>,
    /// Connections of the last load, which stay open until the next one.
    pub(crate) half_open: HalfOpenConnections,
    /// Number of loads so far.
    pub(crate) loads: usize,
}

/// Exit of a server that was terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// Exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// Number of the signal that ended the process; `None` if it exited.
    pub signal: Option<i32>,
}

impl From<ExitStatus> for ExitReport {
    fn from(status: ExitStatus) -> Self {
        Self {
            code: status.code(),
            signal: status.signal(),
        }
    }
}

/// Starts a server under `wrapper`, in a process group of its own, and waits until it replies. Fails, with the end of
/// its log, if it exits or does not reply in time.
pub(crate) fn start_server(
    server: Server,
    dir: ServerDir,
    command: &Command,
    wrapper: &[OsString],
) -> Result<RunningServer> {
    let log = File::create(dir.path().join("log"))?;
    let mut wrapped = wrap_command(command, wrapper);
    let child = dir
        .run_as_server_user(&mut wrapped)
        .current_dir(dir.path())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("failed to start {wrapped:?}"))?;
    let mut running = RunningServer {
        server,
        dir,
        child,
        session: None,
        half_open: HalfOpenConnections::default(),
        loads: 0,
    };
    running.wait_until_ready()?;
    Ok(running)
}

impl RunningServer {
    /// Waits until the server replies. Fails, with the end of the log, if it exits, or after [`SERVER_TIMEOUT`].
    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let Err(error) = self.query() else {
                return Ok(());
            };
            self.check_alive()?;
            if start.elapsed() > SERVER_TIMEOUT {
                return Err(error).with_context(|| format!("no answer; {}", self.log()));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends a client's request and returns the reply, which does not change with time or load.
    ///
    /// # Errors
    /// The request fails or gets no reply within a minute.
    pub fn query(&mut self) -> Result<String> {
        (self.server.query)(self).with_context(|| format!("{} does not reply", self.server.name))
    }

    /// Makes the server allocate about 1 MiB or more, which it keeps until the next load.
    ///
    /// # Errors
    /// The load fails; the end of the log is in the error.
    pub fn run_load(&mut self) -> Result<()> {
        self.loads += 1;
        (self.server.load)(self)
            .with_context(|| format!("the load of {} failed; {}", self.server.name, self.log()))
    }

    /// Returns the server's directory, which also has its port.
    pub fn dir(&self) -> &ServerDir {
        &self.dir
    }

    /// Returns the pid of the process that was started.
    pub fn main_pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the pid of the process that tests profile.
    ///
    /// # Errors
    /// No process matches [`Server::profiled`].
    pub fn pid(&mut self) -> Result<u32> {
        match self.server.profiled {
            ProfiledProcess::Main => Ok(self.main_pid()),
            ProfiledProcess::Child(text) => descendants(self.main_pid())
                .into_iter()
                .find(|child| command_contains(*child, text))
                .with_context(|| format!("{} has no child {text:?}", self.server.name)),
            ProfiledProcess::Session => {
                let session = self.session.as_mut().context("no session")?;
                Ok(session
                    .execute("select pg_backend_pid();")?
                    .trim()
                    .parse()?)
            }
        }
    }

    /// Makes the server fork a child that serves until the server exits, and returns its pid; `None` if the server
    /// forks none.
    ///
    /// # Errors
    /// The server does not fork.
    pub fn fork_child(&mut self) -> Result<Option<u32>> {
        self.server.fork.map(|fork| fork(self)).transpose()
    }

    /// Checks that the process that was started still runs.
    ///
    /// # Errors
    /// It has exited; the end of the log is in the error.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended: {status}; {}", self.server.name, self.log()),
        }
    }

    /// Returns an error with the text of `error` and the end of the log.
    pub fn error_with_log(&self, error: &anyhow::Error) -> anyhow::Error {
        anyhow::anyhow!("{error:#}; {}", self.log())
    }

    /// Returns the last lines of the server's standard output and error, for an error text.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(MAX_LOG_LINES)..].iter();
        let cut = last.map(|line| line.chars().take(MAX_LOG_COLUMNS).collect::<String>());
        format!("its log ends with:\n{}", cut.collect::<Vec<_>>().join("\n"))
    }

    /// Sends a signal to the process that was started, not to its children.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.main_pid().cast_signed()), signal)?)
    }

    /// Calls `poll` every 5 ms until it returns a value, and returns the value. `name` is that of the value in the
    /// error.
    ///
    /// # Errors
    /// `poll` fails, the server exits, or a minute passes.
    pub(crate) fn wait_for<T>(
        &mut self,
        name: &str,
        poll: impl Fn(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = poll(self)? {
                return Ok(found);
            }
            self.check_alive()?;
            ensure!(
                start.elapsed() < SERVER_TIMEOUT,
                "timed out waiting for {name}"
            );
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends SIGTERM, as an operator would, and waits until the server and all of its descendants have exited.
    ///
    /// # Errors
    /// One of the processes still runs after a minute.
    pub fn terminate(mut self) -> Result<ExitReport> {
        self.session = None;
        self.half_open = HalfOpenConnections::default();
        let descendant_pids = descendants(self.main_pid());
        self.signal(Signal::SIGTERM)?;
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()?
                && !descendant_pids.iter().any(|pid| is_running(*pid))
            {
                return Ok(status.into());
            }
            ensure!(
                start.elapsed() < SERVER_TIMEOUT,
                "{} does not end; {}",
                self.server.name,
                self.log()
            );
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for RunningServer {
    /// Ends the server's session, and kills the server and all its descendants. Prints an error instead of failing.
    fn drop(&mut self) {
        self.session = None;
        // Descendants of PostgreSQL and Varnish have process groups and sessions of their own.
        let descendant_pids = descendants(self.main_pid());
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("failed to end {}: {error}", self.server.name);
        }
        for pid in descendant_pids {
            // The descendant may have exited with its parent.
            let _: nix::Result<()> = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}
