//! `memprof completions` and `memprof man`: what the command line says of itself.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::exit::Outcome;
use crate::output;

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "memprof", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(0.into())
}

/// The page of memprof alone to standard output, or those of all its commands to `directory`.
pub(crate) fn man(directory: Option<&Path>) -> Outcome {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        Man::new(Args::command()).render(&mut page)?;
        output::print(&String::from_utf8_lossy(&page))?;
        return Ok(0.into());
    };
    let failed = || format!("failed to write the pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(Args::command(), directory).with_context(failed)?;
    Ok(0.into())
}
