//! strace(1) on one thread of a running host.

use std::fs;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use testkit::LineReader;
use testkit::processes::wait_for_exit;

use super::host::REPLY_TIMEOUT;

/// An attached strace; dropping it detaches.
#[derive(Debug)]
pub(super) struct Tracer {
    child: Child,
    output: NamedTempFile,
}

impl Tracer {
    /// Attaches strace with additional options to the thread that has this id in the kernel, and waits until it is
    /// attached. Fails, with strace's text, if it cannot attach, or after [`REPLY_TIMEOUT`].
    pub(super) fn attach(id: u32, options: &[&str]) -> Result<Self> {
        let output = NamedTempFile::new()?;
        let mut child = Command::new("strace")
            .args(["-p", &id.to_string(), "-o"])
            .arg(output.path())
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start strace")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let tracer = Self { child, output };
        let line = LineReader::new(stderr).read_line(REPLY_TIMEOUT)?;
        ensure!(line.contains("attached"), "{line}");
        Ok(tracer)
    }

    /// Detaches from the thread, and returns the trace as strace wrote it.
    pub(super) fn detach(mut self) -> Result<String> {
        self.stop()?;
        Ok(fs::read_to_string(self.output.path())?)
    }

    /// Stops strace, which then detaches from the thread; does nothing if it has exited. Kills it, and fails, if it
    /// does not exit within [`REPLY_TIMEOUT`].
    fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)?;
            if wait_for_exit(&mut self.child, REPLY_TIMEOUT)?.is_none() {
                self.child.kill()?;
                bail!("strace does not detach");
            }
        }
        Ok(())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("failed to stop strace: {error:#}");
        }
    }
}
