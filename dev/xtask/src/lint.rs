//! Rules that the compiler does not check: dependencies between modules, lengths of files, output, words in names
//! and comments, and whether the files and names exist that documents name.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

mod code_map;
mod documents;
mod modules;
mod output;
mod sources;
mod types;
mod words;

/// Checks the crates and documents of the workspace.
///
/// # Errors
/// One line for each fault, with its file and line where it has one.
pub(crate) fn check_workspace() -> Result<()> {
    let sources = sources::read_sources(&["src"])?;
    let mut faults = modules::find_faults()?;
    faults.extend(words::find_faults(&sources));
    faults.extend(types::find_faults(&sources));
    faults.extend(output::find_faults(&sources));
    faults.extend(documents::find_faults()?);
    faults.extend(code_map::find_faults()?);
    let mut text = String::new();
    for fault in &faults {
        writeln!(text, "{fault}")?;
    }
    ensure!(faults.is_empty(), "{} faults:\n{text}", faults.len());
    Ok(())
}
