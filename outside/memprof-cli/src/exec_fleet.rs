//! `memprof agent` and `memprof fleet`: a program of its own, so that this one stays small.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::exit::{FAILED, Outcome, with_exit_code};
use crate::signals;

const PROGRAM: &str = "memprof-fleet";

/// Replaces this process by the program.
pub(crate) fn run(command: &str, args: &[OsString]) -> Outcome {
    let beside = find_installed()?;
    let program = match beside.exists() {
        true => beside.clone(),
        false => PathBuf::from(PROGRAM),
    };
    let error = signals::inherit(Command::new(&program).arg(command).args(args)).exec();
    if error.kind() == ErrorKind::NotFound {
        let message = format!(
            "{PROGRAM} is neither at {} nor in PATH: `memprof {command}` needs it; it is a package of its own, \
             memprof-fleet",
            beside.display()
        );
        return Err(with_exit_code(FAILED, message));
    }
    Err(error).with_context(|| format!("failed to run {}", program.display()))
}

/// Where it is installed with this program.
fn find_installed() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find this program")?;
    Ok(own.with_file_name(PROGRAM))
}
