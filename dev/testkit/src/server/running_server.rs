//! A server that runs, ended when dropped.

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
use crate::processes::{descendants, is_called, is_running};
use crate::psql_session::PsqlSession;
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::ServerDir;

/// Longer than any of them takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at something that announces itself by no event.
const LOOK: Duration = Duration::from_millis(5);

/// How many lines of its log a failure shows.
const LOG_LINES: usize = 15;
/// And how much of each.
const LOG_COLUMNS: usize = 200;

/// A running server.
#[derive(Debug)]
pub struct RunningServer {
    server: Server,
    place: ServerDir,
    child: Child,
    pub(crate) session: Option<PsqlSession>,
    /// Connections of the load that stay.
    pub(crate) held: HalfOpenConnections,
    /// How often it got its load.
    pub(crate) loads: usize,
}

/// How a server ended that was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// Its exit code, where it was not ended by a signal.
    pub code: Option<i32>,
    /// The signal that ended it.
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

pub(crate) fn start(
    server: Server,
    place: ServerDir,
    command: &Command,
    wrapper: &[OsString],
) -> Result<RunningServer> {
    let log = File::create(place.path().join("log"))?;
    let mut wrapped = wrap(command, wrapper);
    let child = place
        .run_as_server_user(&mut wrapped)
        .current_dir(place.path())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("failed to start {wrapped:?}"))?;
    let mut running = RunningServer {
        server,
        place,
        child,
        session: None,
        held: HalfOpenConnections::default(),
        loads: 0,
    };
    running.wait_until_it_answers()?;
    Ok(running)
}

/// The command as arguments of another one.
fn wrap(command: &Command, wrapper: &[OsString]) -> Command {
    let mut words = wrapper.to_vec();
    words.push(command.get_program().to_owned());
    words.extend(command.get_args().map(OsString::from));
    let mut wrapped = Command::new(&words[0]);
    wrapped.args(&words[1..]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

impl RunningServer {
    fn wait_until_it_answers(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let Err(error) = self.query() else {
                return Ok(());
            };
            self.check_alive()?;
            if begun.elapsed() > PATIENCE {
                return Err(error).with_context(|| format!("no answer; {}", self.log()));
            }
            thread::sleep(LOOK);
        }
    }

    /// What a client is answered.
    ///
    /// # Errors
    /// It answers nothing within a minute.
    pub fn query(&mut self) -> Result<String> {
        (self.server.answer)(self).with_context(|| format!("{} does not answer", self.server.name))
    }

    /// Has it allocate memory that stays until the next load.
    ///
    /// # Errors
    /// It does not do its work.
    pub fn run_load(&mut self) -> Result<()> {
        self.loads += 1;
        (self.server.load)(self)
            .with_context(|| format!("{} does not work; {}", self.server.name, self.log()))
    }

    /// Where it lives.
    pub fn place(&self) -> &ServerDir {
        &self.place
    }

    /// The process that was started.
    pub fn main_pid(&self) -> u32 {
        self.child.id()
    }

    /// The process that is meant.
    ///
    /// # Errors
    /// There is none.
    pub fn pid(&mut self) -> Result<u32> {
        match self.server.profiled {
            ProfiledProcess::Main => Ok(self.main_pid()),
            ProfiledProcess::Child(text) => descendants(self.main_pid())
                .into_iter()
                .find(|child| is_called(*child, text))
                .with_context(|| format!("{} has no child {text:?}", self.server.name)),
            ProfiledProcess::Session => {
                let session = self.session.as_mut().context("no session")?;
                Ok(session.ask("select pg_backend_pid();")?.trim().parse()?)
            }
        }
    }

    /// Has it fork a child that serves until the server ends; none where it forks none.
    ///
    /// # Errors
    /// It does not.
    pub fn fork(&mut self) -> Result<Option<u32>> {
        self.server.forks.map(|fork| fork(self)).transpose()
    }

    /// Fails when the process that was started has ended.
    ///
    /// # Errors
    /// It has; its log is shown.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended: {status}; {}", self.server.name, self.log()),
        }
    }

    /// An error with the end of the log behind it.
    pub fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        anyhow::anyhow!("{error:#}; {}", self.log())
    }

    /// The last lines of what it printed.
    pub fn log(&self) -> String {
        let log = fs::read(self.place.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].iter();
        let cut = last.map(|line| line.chars().take(LOG_COLUMNS).collect::<String>());
        format!("its log ends with:\n{}", cut.collect::<Vec<_>>().join("\n"))
    }

    /// Sends a signal to the process that was started.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.main_pid().cast_signed()), signal)?)
    }

    /// Waits for what `is_so` returns, which announces itself by no event.
    pub(crate) fn wait_for<T>(
        &mut self,
        what: &str,
        is_so: impl Fn(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = is_so(self)? {
                return Ok(found);
            }
            self.check_alive()?;
            ensure!(begun.elapsed() < PATIENCE, "{what} does not come");
            thread::sleep(LOOK);
        }
    }

    /// Ends it as an operator would, by SIGTERM, with every process that it has.
    ///
    /// # Errors
    /// It goes on for a minute, or one of its processes outlives it.
    pub fn end(mut self) -> Result<ExitReport> {
        self.session = None;
        self.held = HalfOpenConnections::default();
        let below = descendants(self.main_pid());
        self.signal(Signal::SIGTERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()?
                && !below.iter().any(|pid| is_running(*pid))
            {
                return Ok(status.into());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "{} does not end; {}",
                self.server.name,
                self.log()
            );
            thread::sleep(LOOK);
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.session = None;
        // Some of them have groups and sessions of their own: PostgreSQL, Varnish.
        let below = descendants(self.main_pid());
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("failed to end {}: {error}", self.server.name);
        }
        for pid in below {
            // It may have ended with its parent.
            let _: nix::Result<()> = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}
