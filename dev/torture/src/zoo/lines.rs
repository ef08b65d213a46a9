//! Programs that reply to each line of their input by a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::{Context, Result, bail};
use testkit::processes::wait_for_exit;

use crate::host::REPLY_TIMEOUT;

/// Command and input of a program.
pub(super) struct Lines {
    pub(super) words: Vec<String>,
    pub(super) variable: Option<(&'static str, &'static str)>,
    /// Input after the start.
    pub(super) first: &'static str,
    /// Input for each reply.
    pub(super) line: &'static str,
}

/// A running program; dropping it kills it.
pub(super) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    line: &'static str,
}

impl Lines {
    /// Starts the program, and sends its first input, to which it does not reply.
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
            output: receive_lines(output),
            line: self.line,
        })
    }
}

/// Reads a program's output on a thread, so that a program that hangs does not block the suite. The receiver gets each
/// line with its newline, and the rest after the last line.
fn receive_lines(mut output: impl BufRead + Send + 'static) -> Receiver<String> {
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

    /// Sends the program its line, and returns the reply with its newline. Fails if the program has exited, or does not
    /// reply within [`REPLY_TIMEOUT`].
    pub(super) fn send_line(&mut self) -> Result<String> {
        let input = self.input.as_mut().context("its input is closed")?;
        // If the program has exited, the status below says so.
        let _ = input.write_all(self.line.as_bytes());
        match self.output.recv_timeout(REPLY_TIMEOUT) {
            Ok(line) => Ok(line),
            Err(_) => match self.child.try_wait()? {
                Some(status) => bail!("DEAD: {status}"),
                None => bail!("HANGS: no answer in {REPLY_TIMEOUT:?}"),
            },
        }
    }

    /// Closes the input, waits for the program's end, and returns the remaining output and the exit status as text.
    /// Fails if the program neither writes nor ends within [`REPLY_TIMEOUT`].
    pub(super) fn end(mut self) -> Result<String> {
        drop(self.input.take());
        let mut output = String::new();
        loop {
            match self.output.recv_timeout(REPLY_TIMEOUT) {
                Ok(line) => output.push_str(&line),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => bail!("HANGS: it does not end"),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        let ended = wait_for_exit(&mut self.child, REPLY_TIMEOUT)?;
        let ended = ended.context("HANGS: it closes its output and does not end")?;
        Ok(format!("{output}{ended}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
