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
        let page = render_page(&Man::new(help::command()))?;
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
        Ok(out.write_all(&render_page(&page)?)?)
    })
}

/// Returns the page in roff. `clap_mangen` names the text after the options `EXTRA`; man-pages(7) has the heading
/// `NOTES`.
fn render_page(page: &Man) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.replace("\n.SH EXTRA\n", "\n.SH NOTES\n").into_bytes())
}
