//! `cargo xtask book`: the book as HTML, in `target/book`.

use std::process::Command;

use anyhow::Result;

use xtask::run::{root, run};

use crate::cargo_tool;

/// Builds it, with what mdBook calls an error.
pub(crate) fn build() -> Result<()> {
    cargo_tool::require("mdbook", &["--no-default-features"])?;
    run(Command::new("mdbook")
        .args(["build", "docs"])
        .current_dir(root()))
}
