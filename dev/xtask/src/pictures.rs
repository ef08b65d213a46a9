//! `cargo xtask pictures`: the pictures of README and the book, drawn anew from a run of Redis.

use std::fs;

use anyhow::{Context, Result};

use xtask::dist::{self, Profile};
use xtask::packages;
use xtask::run::{cargo_command, project_root, run};

/// The end-to-end test that draws them into `target/screenshots`.
const TEST: &str = "pictures::pictures_are_of_a_run";

/// Builds everything, runs the test that draws the pictures, and copies them to those of the book.
pub(crate) fn draw_pictures() -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    dist::build_all(Profile::Dev)?;
    run(&mut cargo_command(&[
        "test",
        "--workspace",
        "--quiet",
        "--test=e2e",
        "--",
        "--exact",
        TEST,
    ]))?;
    for name in ["page.png", "flamegraph.png"] {
        let drawn = project_root().join("target/screenshots").join(name);
        let kept = project_root().join("docs/src/pictures").join(name);
        fs::copy(&drawn, &kept)
            .with_context(|| format!("copy {} to {}", drawn.display(), kept.display()))?;
    }
    Ok(())
}
