//! `memprof check PLUGIN.so`: would a host take it?
//!
//! Loading runs the file's constructors, so it happens in a child: a plugin that crashes there
//! is a finding, not the end.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::exit::{FAILED, Outcome, code_of_status, coded};
use crate::output;

/// The child's last word: it made the check, whatever the file's code did.
const DONE: u8 = b'.';

/// The end of the time that loading may take.
enum End {
    Done,
    Left,
    TooLate,
}

pub(crate) fn run(plugin: &Path, limit: Duration) -> Outcome {
    let own = std::env::current_exe().context("failed to find this program")?;
    let (proof, childs) = UnixStream::pair().context("failed to make a socket pair")?;
    let mut child = Command::new(own)
        .arg("check")
        .arg("--in-child")
        .arg(std::path::absolute(plugin)?)
        .stdin(OwnedFd::from(childs))
        .spawn()
        .context("failed to start the child that loads the plugin")?;
    let end = wait(&proof, limit)?;
    if !matches!(end, End::Done) {
        // It may go on though it closed the socket. One that has ended keeps its status.
        child
            .kill()
            .context("failed to end the child that loads the plugin")?;
    }
    verdict(plugin, limit, &end, &mut child)
}

fn verdict(plugin: &Path, limit: Duration, end: &End, child: &mut Child) -> Outcome {
    let status = child.wait().context("failed to wait for the child")?;
    let failed = |why: String| Err(coded(FAILED, format!("{}: {why}", plugin.display())));
    match (end, status.signal(), status.code()) {
        (End::TooLate, ..) => failed(format!(
            "loading it did not end within {} seconds; its constructors or destructors wait for something",
            limit.as_secs()
        )),
        (_, Some(signal), _) => failed(format!("loading it ended the process by signal {signal}")),
        (End::Left, _, code) => failed(format!(
            "loading it ended the process by exit status {}, as a constructor may do, before the check was made",
            code.unwrap_or_default()
        )),
        (End::Done, _, code) => {
            let code = code.and_then(|code| u8::try_from(code).ok());
            Ok(code.unwrap_or(FAILED).into())
        }
    }
}

/// Waits until the child has ended, which closes the socket.
fn wait(mut proof: &UnixStream, limit: Duration) -> Result<End> {
    proof
        .set_read_timeout(Some(limit))
        .context("failed to set the time limit")?;
    let mut end = End::Left;
    let mut word = [0];
    loop {
        match proof.read(&mut word) {
            Ok(0) => return Ok(end),
            Ok(_) if word == [DONE] => end = End::Done,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(End::TooLate),
            Err(error) => {
                return Err(error).context("failed to wait for the child that loads the plugin");
            }
        }
    }
}

/// The check itself, and its last word on the standard input, which [`run`] made a socket.
pub(crate) fn in_child(plugin: &Path) -> Outcome {
    let outcome = load(plugin);
    // By hand, the option has another input, where nobody waits for it.
    if let Ok(proof) = std::io::stdin().as_fd().try_clone_to_owned() {
        let _written = UnixStream::from(proof).write_all(&[DONE]);
    }
    outcome
}

fn load(plugin: &Path) -> Outcome {
    let (info, warning) = memprof_host::check(plugin, None)
        .map_err(|refused| coded(code_of_status(refused.status()), refused.to_string()))?;
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
