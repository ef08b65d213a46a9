//! `memprof agent` and `memprof fleet`: run the separate program memprof-fleet, so that this one stays small.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::exit::{FAILED, Outcome, with_exit_code};
use crate::signals;

/// File name of the program.
const PROGRAM: &str = "memprof-fleet";

/// Replaces this process by the program `memprof-fleet`, which runs its own `command` with `args`. Uses the file beside
/// this program or, if there is none, the one in `PATH`. Returns only if that fails.
pub(crate) fn run(command: &str, args: &[OsString]) -> Outcome {
    let installed = installed_fleet_path()?;
    let program = match installed.exists() {
        true => installed.clone(),
        false => PathBuf::from(PROGRAM),
    };
    let error =
        signals::inherit_caller_signals(Command::new(&program).arg(command).args(args)).exec();
    if error.kind() == ErrorKind::NotFound {
        let message = format!(
            "{PROGRAM} is neither at {} nor in PATH: `memprof {command}` needs it; it is a package of its own, \
             memprof-fleet",
            installed.display()
        );
        return Err(with_exit_code(FAILED, message));
    }
    Err(error).with_context(|| format!("failed to run {}", program.display()))
}

/// Returns the path that `memprof-fleet` has if it is installed beside this program. The file may not exist.
fn installed_fleet_path() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find this program")?;
    Ok(own.with_file_name(PROGRAM))
}
