//! `cargo xtask pictures`: the pictures of README and the book, drawn anew from a run of Redis.

use std::fs;

use anyhow::{Context, Result};

use xtask::dist::{self, Profile};
use xtask::packages;
use xtask::run::{cargo, root, run};

/// The end-to-end test that draws them into `target/screenshots`.
const TEST: &str = "pictures::pictures_are_of_a_run";

/// Runs the test that draws the pictures, and copies them to those of the book.
pub(crate) fn draw_pictures() -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    dist::build_all(Profile::Dev)?;
    run(&mut cargo(&[
        "test",
        "--workspace",
        "--quiet",
        "--test=e2e",
        "--",
        "--exact",
        TEST,
    ]))?;
    for name in ["page.png", "flamegraph.png"] {
        let drawn = root().join("target/screenshots").join(name);
        let kept = root().join("docs/src/pictures").join(name);
        fs::copy(&drawn, &kept)
            .with_context(|| format!("copy {} to {}", drawn.display(), kept.display()))?;
    }
    Ok(())
}
