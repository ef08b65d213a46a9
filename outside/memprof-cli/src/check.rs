//! `memprof check PLUGIN.so`: checks whether a host would load a plugin.
//!
//! Loading runs the file's constructors, so it happens in a child: a crash there is a finding, and does not end this
//! program.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use crate::exit::{FAILED, Outcome, code_of_status, with_exit_code};
use crate::output;

/// Size of the child's pid, which the child sends after the check. It proves that the check was made, and not in a
/// process that the plugin's code has forked.
const PROOF_BYTES: usize = size_of::<u32>();

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The plugin's file.
    #[arg(value_name = "FILE")]
    plugin: PathBuf,
    /// Fail if loading takes longer than this, for example 30s
    #[arg(long = "for", alias = "timeout", value_name = "DURATION", default_value = "10s", value_parser = crate::process_arg::parse_duration)]
    limit: Duration,
    /// Load it in this process.
    #[arg(long, hide = true)]
    in_child: bool,
}

/// Runs `memprof check` and `memprof plugin check`: loads the plugin in a child process, or in this one if it is that
/// child.
pub(crate) fn run(args: &CheckArgs) -> Outcome {
    match args.in_child {
        true => check_plugin_as_child(&args.plugin),
        false => check_plugin_in_child(&args.plugin, args.limit),
    }
}

/// Loads the plugin in a child process, which proves the check by sending its pid over a socket, its standard input.
/// Fails if the child takes longer than `limit`, crashes, or ends before it has made the check. Otherwise, the outcome
/// is the child's exit code.
fn check_plugin_in_child(plugin: &Path, limit: Duration) -> Outcome {
    let own = std::env::current_exe().context("failed to find this program")?;
    let (mut proof, child_end) = UnixStream::pair().context("failed to make a socket pair")?;
    let mut child = Command::new(own)
        .arg("check")
        .arg("--in-child")
        .arg(std::path::absolute(plugin)?)
        .stdin(OwnedFd::from(child_end))
        .spawn()
        .context("failed to start the child that loads the plugin")?;
    let has_ended = wait_for_exit(&child, limit);
    if !matches!(has_ended, Ok(true)) {
        child
            .kill()
            .context("failed to end the child that loads the plugin")?;
    }
    let status = child.wait().context("failed to wait for the child")?;
    let has_ended = has_ended?;
    // Processes that the plugin started may keep the other end open, so the read must not block.
    proof
        .set_nonblocking(true)
        .context("failed to read the child's last word")?;
    let mut checked_in = [0; PROOF_BYTES];
    let checked_in = proof
        .read_exact(&mut checked_in)
        .is_ok()
        .then_some(u32::from_ne_bytes(checked_in));
    let failed = |reason: String| {
        Err(with_exit_code(
            FAILED,
            format!("{}: {reason}", plugin.display()),
        ))
    };
    match (status.signal(), status.code()) {
        _ if !has_ended => failed(format!(
            "loading it did not end within {} seconds; its constructors or destructors wait for something",
            limit.as_secs()
        )),
        (Some(signal), _) => failed(format!("loading it ended the process by signal {signal}")),
        (None, code) if checked_in == Some(child.id()) => {
            let code = code.and_then(|code| u8::try_from(code).ok());
            Ok(code.unwrap_or(FAILED).into())
        }
        (None, _) => failed(format!(
            "loading it ended the process ({status}) before the check was made in it, as a constructor may that exits or \
             forks"
        )),
    }
}

/// Waits until the child has ended, for at most `limit`. Returns whether it has.
fn wait_for_exit(child: &Child, limit: Duration) -> Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
        .context("failed to watch the child that loads the plugin")?;
    let limit = Timespec::try_from(limit).context("--for is too long")?;
    let mut ends = [PollFd::new(&process, PollFlags::IN)];
    let ready = retry_on_intr(|| poll(&mut ends, Some(&limit)))
        .context("failed to wait for the child that loads the plugin")?;
    Ok(ready > 0)
}

/// Checks the plugin in this process, the child that [`check_plugin_in_child`] starts. Then sends this process's pid,
/// the proof of the check, to standard input, which is a socket to the parent.
fn check_plugin_as_child(plugin: &Path) -> Outcome {
    let outcome = check_plugin_and_print(plugin);
    // The write fails if a user typed the hidden option: then standard input is no socket.
    if let Ok(proof) = std::io::stdin().as_fd().try_clone_to_owned() {
        let _written = UnixStream::from(proof).write_all(&std::process::id().to_ne_bytes());
    }
    outcome
}

/// Loads the plugin as a host would, and prints its ID, version and messages. Writes warnings to stderr. An error has
/// the exit code that fits its status.
fn check_plugin_and_print(plugin: &Path) -> Outcome {
    let (info, warnings) = memprof_host::check(plugin, None)
        .map_err(|error| with_exit_code(code_of_status(error.status()), error.to_string()))?;
    output::print(&format!(
        "{}: plugin {} {}, messages: {}",
        plugin.display(),
        info.id,
        info.version,
        info.messages.join(", ")
    ));
    for warning in warnings {
        output::note(&format!("{}: {warning}", plugin.display()));
    }
    Ok(0.into())
}
