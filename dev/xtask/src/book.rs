//! `cargo xtask book`: the book as HTML, in `target/book`.

use std::process::Command;

use anyhow::Result;

use xtask::run::{project_root, run};

use crate::cargo_tool;

/// Builds the book, and installs mdBook if it is missing.
pub(crate) fn build_book() -> Result<()> {
    cargo_tool::ensure_installed("mdbook", &["--no-default-features"])?;
    run(Command::new("mdbook")
        .args(["build", "docs"])
        .current_dir(project_root()))
}
