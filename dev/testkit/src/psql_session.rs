//! A session of psql(1) that stays open, so that one backend serves it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// What psql prints behind each answer.
const END: &str = "-- end of the answer --";

/// An open session.
#[derive(Debug)]
pub(crate) struct PsqlSession {
    client: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl PsqlSession {
    /// Starts a client that reads statements from its standard input.
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

    /// What a statement returns.
    pub(crate) fn ask(&mut self, statement: &str) -> Result<String> {
        writeln!(self.input, "{statement}\n\\echo {END}")?;
        let mut answer = String::new();
        loop {
            let before = answer.len();
            if self.output.read_line(&mut answer)? == 0 {
                bail!("the session ended: {answer}");
            }
            if answer[before..].trim_end() == END {
                answer.truncate(before);
                return Ok(answer);
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
