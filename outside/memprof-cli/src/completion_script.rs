//! `memprof completions`: prints a shell's completion script.

use anyhow::Context;
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::exit::Outcome;
use crate::output;

/// Environment variable by which the shell's script requests completions from this program.
pub(crate) const COMPLETE_VARIABLE: &str = "MEMPROF_COMPLETE";

/// Prints a shell's completion script. The script runs this program at each completion, so that it offers the hosts
/// that run at that time.
pub(crate) fn print_completion_script(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    let shell = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell);
    let completer = completer.with_context(|| format!("no script for {shell}"))?;
    // The shell function, the completed command and the program that completes it have the same name.
    completer.write_registration(
        COMPLETE_VARIABLE,
        "memprof",
        "memprof",
        "memprof",
        &mut script,
    )?;
    output::print(&String::from_utf8_lossy(&script));
    Ok(0.into())
}
