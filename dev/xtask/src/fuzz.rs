//! `cargo xtask fuzz`: runs the fuzz targets of the file readers and of the stack walk over their seeds.
//!
//! New inputs take a nightly compiler: `cargo +nightly fuzz run TARGET seeds/TARGET`, in a crate's folder `fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use xtask::dist::{Profile, built_dir};
use xtask::run::{output, project_root};

/// Directories of crates whose folder `fuzz` has targets, and for each target a folder of seeds.
const CRATES: [&str; 2] = ["outside/memprof-report", "in-process/memprof-unwind"];

/// Returns the name of each fuzz target, by which cargo builds it.
pub(crate) fn target_names() -> Result<Vec<String>> {
    Ok(find_targets()?.into_iter().map(|(_, name)| name).collect())
}

/// Runs each fuzz target, which must be built, once over all of its seeds. Fails if one crashes or has no seeds.
pub(crate) fn replay_seeds() -> Result<()> {
    for (folder, target) in find_targets()? {
        let seeds = list_files(&folder.join("seeds").join(&target))?;
        output(Command::new(built_dir(Profile::Dev).join(&target)).args(&seeds))?;
        println!("{target}: {} seeds", seeds.len());
    }
    Ok(())
}

/// Finds each fuzz target. Returns the folder `fuzz` of its crate, and its name.
fn find_targets() -> Result<Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    for name in CRATES {
        let folder = project_root().join(name).join("fuzz");
        for source in list_files(&folder.join("fuzz_targets"))? {
            let target = source.file_stem().context("a target without a name")?;
            all.push((folder.clone(), target.to_string_lossy().into_owned()));
        }
    }
    Ok(all)
}

/// Lists the files of a folder, sorted. Fails if there are none.
fn list_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let shown = folder.display();
    let found = fs::read_dir(folder).with_context(|| format!("{shown}"))?;
    let found: Result<Vec<_>, _> = found.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut found = found?;
    found.sort_unstable();
    ensure!(!found.is_empty(), "{shown} is empty");
    Ok(found)
}
