//! `memprof completions` and `memprof man`: what the command line says of itself.

use std::path::Path;

use anyhow::Context;
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::Man;

use crate::exit::Outcome;
use crate::{help, output};

/// Set by the shell's script where it asks this program what fits.
pub(crate) const COMPLETE: &str = "MEMPROF_COMPLETE";

/// The script asks this program each time, so that it offers the hosts that run.
pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    let shell = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell);
    let completer = completer.with_context(|| format!("no script for {shell}"))?;
    completer.write_registration(COMPLETE, "memprof", "memprof", "memprof", &mut script)?;
    output::print(&String::from_utf8_lossy(&script));
    Ok(0.into())
}

/// The page of memprof alone to standard output, or those of all its commands to `directory`.
pub(crate) fn man(directory: Option<&Path>) -> Outcome {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        Man::new(help::command()).render(&mut page)?;
        output::print(&String::from_utf8_lossy(&page));
        return Ok(0.into());
    };
    let failed = || format!("failed to write the pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(help::command(), directory).with_context(failed)?;
    Ok(0.into())
}
