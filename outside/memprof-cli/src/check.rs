//! `memprof check PLUGIN.so`: would a host take it?
//!
//! Loading runs the file's constructors, so it happens in a child: a plugin that crashes there
//! is a finding, not the end.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use crate::exit::{FAILED, Outcome, code_of_status, with_exit_code};
use crate::output;

/// The child's last word: it made the check, whatever the file's code did.
const DONE: u8 = b'.';

pub(crate) fn run(plugin: &Path, limit: Duration) -> Outcome {
    let own = std::env::current_exe().context("failed to find this program")?;
    let (mut proof, childs) = UnixStream::pair().context("failed to make a socket pair")?;
    let mut child = Command::new(own)
        .arg("check")
        .arg("--in-child")
        .arg(std::path::absolute(plugin)?)
        .stdin(OwnedFd::from(childs))
        .spawn()
        .context("failed to start the child that loads the plugin")?;
    let has_ended = wait(&child, limit)?;
    if !has_ended {
        child
            .kill()
            .context("failed to end the child that loads the plugin")?;
    }
    let status = child.wait().context("failed to wait for the child")?;
    // What the plugin left behind may hold the other end open.
    proof
        .set_nonblocking(true)
        .context("failed to read the child's last word")?;
    let mut word = [0];
    let is_done = proof.read_exact(&mut word).is_ok() && word == [DONE];
    let failed = |why: String| {
        Err(with_exit_code(
            FAILED,
            format!("{}: {why}", plugin.display()),
        ))
    };
    match (status.signal(), status.code()) {
        _ if !has_ended => failed(format!(
            "loading it did not end within {} seconds; its constructors or destructors wait for something",
            limit.as_secs()
        )),
        (Some(signal), _) => failed(format!("loading it ended the process by signal {signal}")),
        (None, code) if is_done => {
            let code = code.and_then(|code| u8::try_from(code).ok());
            Ok(code.unwrap_or(FAILED).into())
        }
        (None, _) => failed(format!(
            "loading it ended the process ({status}), as a constructor may do, before the check was made"
        )),
    }
}

/// Waits until the child has ended; false where it has not within `limit`.
fn wait(child: &Child, limit: Duration) -> Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
        .context("failed to watch the child that loads the plugin")?;
    let limit = Timespec::try_from(limit).context("--for is too long")?;
    let mut ends = [PollFd::new(&process, PollFlags::IN)];
    let ready = retry_on_intr(|| poll(&mut ends, Some(&limit)))
        .context("failed to wait for the child that loads the plugin")?;
    Ok(ready > 0)
}

/// The check itself, and its last word on the standard input, which [`run`] made a socket.
pub(crate) fn in_child(plugin: &Path) -> Outcome {
    let outcome = load(plugin);
    // Typed by a user, the option has another standard input, which is no socket.
    if let Ok(proof) = std::io::stdin().as_fd().try_clone_to_owned() {
        let _written = UnixStream::from(proof).write_all(&[DONE]);
    }
    outcome
}

fn load(plugin: &Path) -> Outcome {
    let (info, warning) = memprof_host::check(plugin, None)
        .map_err(|refused| with_exit_code(code_of_status(refused.status()), refused.to_string()))?;
    output::print(&format!(
        "{}: plugin {} {}, messages: {}",
        plugin.display(),
        info.id,
        info.version,
        info.messages.join(", ")
    ));
    if let Some(warning) = warning {
        output::note(&format!("{}: {warning}", plugin.display()));
    }
    Ok(0.into())
}
