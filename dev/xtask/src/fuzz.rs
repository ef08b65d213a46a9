//! `cargo xtask fuzz`: what reads files of others, and the walk, over their seeds.
//!
//! New inputs take a nightly compiler: `cargo +nightly fuzz run TARGET seeds/TARGET`, in a crate's folder `fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use xtask::dist::{Profile, build_programs, built_dir};
use xtask::run::{output, root};

/// Directories of crates whose folder `fuzz` has targets, and for each target a folder of seeds.
const CRATES: [&str; 2] = ["outside/memprof-report", "in-process/memprof-unwind"];

/// Each target once over each of its seeds: an input that once was a fault does not become one again.
pub(crate) fn replay() -> Result<()> {
    let targets = targets()?;
    build_programs(targets.iter().map(|(_, target)| target))?;
    for (folder, target) in targets {
        let seeds = files(&folder.join("seeds").join(&target))?;
        output(Command::new(built_dir(Profile::Dev).join(&target)).args(&seeds))?;
        println!("{target}: {} seeds", seeds.len());
    }
    Ok(())
}

/// The folder and the name of each target.
fn targets() -> Result<Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    for name in CRATES {
        let folder = root().join(name).join("fuzz");
        for source in files(&folder.join("fuzz_targets"))? {
            let target = source.file_stem().context("a target without a name")?;
            all.push((folder.clone(), target.to_string_lossy().into_owned()));
        }
    }
    Ok(all)
}

/// The files of a folder, which has some.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let shown = folder.display();
    let found = fs::read_dir(folder).with_context(|| format!("{shown}"))?;
    let found: Result<Vec<_>, _> = found.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut found = found?;
    found.sort_unstable();
    ensure!(!found.is_empty(), "{shown} is empty");
    Ok(found)
}
