//! A session of psql(1) that stays open, so that one backend serves it.

use std::io::Write;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::line_reader::LineReader;

/// Line that psql prints after each reply.
const END_MARKER: &str = "-- end of the answer --";

/// Timeout of a statement, long enough for a busy machine.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A psql process; dropping it ends the session.
#[derive(Debug)]
pub(crate) struct PsqlSession {
    client: Child,
    input: ChildStdin,
    output: LineReader<ChildStdout>,
}

impl PsqlSession {
    /// Starts a client that reads statements from its standard input. `command` is psql for a server, whose standard
    /// streams are set here.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut client = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {command:?}"))?;
        Ok(Self {
            input: client.stdin.take().context("stdin is piped")?,
            output: LineReader::new(client.stdout.take().context("stdout is piped")?),
            client,
        })
    }

    /// Executes a statement and returns its rows as psql prints them; none if the statement fails.
    ///
    /// # Errors
    /// The session ended, or the statement takes longer than [`STATEMENT_TIMEOUT`].
    pub(crate) fn execute(&mut self, statement: &str) -> Result<String> {
        writeln!(self.input, "{statement}\n\\echo {END_MARKER}")?;
        let mut reply = String::new();
        let is_end = |line: &str| {
            let is_end = line.trim_end() == END_MARKER;
            if !is_end {
                reply.extend([line, "\n"]);
            }
            is_end.then_some(())
        };
        let ended = self.output.find_line(STATEMENT_TIMEOUT, is_end);
        ended.with_context(|| format!("{statement}: the session printed {reply:?}"))?;
        Ok(reply)
    }
}

impl Drop for PsqlSession {
    fn drop(&mut self) {
        if let Err(error) = self.client.kill().and_then(|()| self.client.wait()) {
            eprintln!("failed to end a session: {error}");
        }
    }
}
