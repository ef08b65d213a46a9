//! Processes of agents and NATS servers, and the wait for what they do.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Time that an agent may take to reply again, or to empty its spool.
const AGENT_TIMEOUT: Duration = Duration::from_secs(90);

/// Polls every 50 ms until a condition is true; fails with `message` after [`AGENT_TIMEOUT`].
pub(super) fn wait_until(message: &str, mut is_done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_done() {
        ensure!(
            start.elapsed() < AGENT_TIMEOUT,
            "{message} after {AGENT_TIMEOUT:?}"
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A process of an agent or a NATS server; dropping it kills it.
pub(super) struct AgentProcess(Child);

impl AgentProcess {
    /// Starts a command, and drops what it writes to its standard error.
    pub(super) fn start_without_stderr(command: &mut Command) -> Result<Self> {
        Self::start_with_stderr(command.stderr(Stdio::null()))
    }

    /// Starts a command, whose standard error goes where the caller has set it.
    pub(super) fn start_with_stderr(command: &mut Command) -> Result<Self> {
        let started = command.spawn();
        let name = || command.get_program().display().to_string();
        Ok(Self(started.with_context(name)?))
    }

    /// Kills the process with SIGKILL, and waits for its end.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("fleet: {error}");
        }
    }
}
