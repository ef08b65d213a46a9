//! A session of psql(1) that stays open, so that one backend serves it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// Line that psql prints after each reply.
const END_MARKER: &str = "-- end of the answer --";

/// A psql process; dropping it ends the session.
#[derive(Debug)]
pub(crate) struct PsqlSession {
    client: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
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
            output: BufReader::new(client.stdout.take().context("stdout is piped")?),
            client,
        })
    }

    /// Executes a statement and returns its rows as psql prints them; none if the statement fails.
    ///
    /// # Errors
    /// The session ended.
    pub(crate) fn execute(&mut self, statement: &str) -> Result<String> {
        writeln!(self.input, "{statement}\n\\echo {END_MARKER}")?;
        let mut reply = String::new();
        loop {
            let before = reply.len();
            if self.output.read_line(&mut reply)? == 0 {
                bail!("the session ended: {reply}");
            }
            if reply[before..].trim_end() == END_MARKER {
                reply.truncate(before);
                return Ok(reply);
            }
        }
    }
}

impl Drop for PsqlSession {
    fn drop(&mut self) {
        if let Err(error) = self.client.kill().and_then(|()| self.client.wait()) {
            eprintln!("failed to end a session: {error}");
        }
    }
}
