//! `memprof completions` and `memprof man`: prints completion scripts and manual pages.

use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::Man;

use crate::exit::Outcome;
use crate::{help, output};

/// Environment variable by which the shell's script requests completions from this program.
pub(crate) const COMPLETE_VARIABLE: &str = "MEMPROF_COMPLETE";

/// Prints a script that runs this program at each completion, so that it offers running hosts.
pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    let shell = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell);
    let completer = completer.with_context(|| format!("no script for {shell}"))?;
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

/// Prints the page of memprof itself, or writes the pages of all commands to `directory`.
pub(crate) fn man(directory: Option<&Path>) -> Outcome {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        Man::new(help::command()).render(&mut page)?;
        output::print(&String::from_utf8_lossy(&page));
        return Ok(0.into());
    };
    let failed = || format!("failed to write the pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    let mut command = help::command();
    command.build();
    write_pages(command, directory)?;
    Ok(0.into())
}

/// Writes the page of a command and those of its subcommands to files.
fn write_pages(command: Command, directory: &Path) -> anyhow::Result<()> {
    let listed = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    for subcommand in listed.cloned() {
        write_pages(subcommand, directory)?;
    }
    let page = Man::new(command);
    output::publish(&directory.join(page.get_filename()), |out| {
        Ok(page.render(out)?)
    })
}
