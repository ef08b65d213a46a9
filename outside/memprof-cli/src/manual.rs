//! `memprof man`: prints or writes manual pages.

use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

use crate::exit::Outcome;
use crate::{help, output};

/// Writes the pages of all commands to `directory`. If it is `None`, prints the page of memprof itself.
pub(crate) fn print_or_write_pages(directory: Option<&Path>) -> Outcome {
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
    output::publish_file(&directory.join(page.get_filename()), |out| {
        Ok(page.render(out)?)
    })
}
