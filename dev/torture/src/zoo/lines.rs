//! A program that answers each line of its input by a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::host::REPLY_TIMEOUT;

/// How one is started, and what it is given.
pub(super) struct Lines {
    pub(super) words: Vec<String>,
    pub(super) variable: Option<(&'static str, &'static str)>,
    /// Once.
    pub(super) first: &'static str,
    /// Each time.
    pub(super) line: &'static str,
}

/// A running one, ended when dropped.
pub(super) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    line: &'static str,
}

impl Lines {
    pub(super) fn start(&self) -> Result<Running> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(self.variable);
        command.env("TERM", "dumb").stderr(Stdio::null());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context(self.words[0].clone())?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut input = child.stdin.take().context("no input")?;
        input.write_all(self.first.as_bytes())?;
        Ok(Running {
            child,
            input: Some(input),
            output: heard(output),
            line: self.line,
        })
    }
}

/// Its lines, and what follows the last one: a program that hangs must not hang the suite.
fn heard(mut output: impl BufRead + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut line = Vec::new();
        while output
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line).into_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

impl Running {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it a line, and returns the answer.
    pub(super) fn answer(&mut self) -> Result<String> {
        let input = self.input.as_mut().context("its input is closed")?;
        // An ended one is told by its status.
        let _ = input.write_all(self.line.as_bytes());
        match self.output.recv_timeout(REPLY_TIMEOUT) {
            Ok(line) => Ok(line),
            Err(_) => match self.child.try_wait()? {
                Some(status) => bail!("DEAD: {status}"),
                None => bail!("HANGS: no answer in {REPLY_TIMEOUT:?}"),
            },
        }
    }

    /// Closes its input, and returns what it says then, and how it ends.
    pub(super) fn end(mut self) -> Result<String> {
        drop(self.input.take());
        let mut said = String::new();
        loop {
            match self.output.recv_timeout(REPLY_TIMEOUT) {
                Ok(line) => said.push_str(&line),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => bail!("HANGS: it does not end"),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(format!("{said}{}", self.child.wait()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
