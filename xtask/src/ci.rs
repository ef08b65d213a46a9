//! `cargo xtask test` and `cargo xtask ci`.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};

use xtask::dist::{self, Profile};
use xtask::packages;
use xtask::run::{cargo, output, root, run};

use crate::{arrows, demo, features, fuzz, tool};

/// Builds everything and runs every test, which leave the source tree as it was.
pub(crate) fn test() -> Result<()> {
    packages::require(packages::TEST)?;
    let before = changed_files()?;
    dist::build_all(Profile::Dev)?;
    run(&mut cargo(&["test", "--workspace", "--quiet"]))?;
    let left: Vec<_> = changed_files()?.difference(&before).cloned().collect();
    ensure!(
        left.is_empty(),
        "the tests changed the source tree:\n{}",
        left.join("\n")
    );
    Ok(())
}

/// What git calls changed or new; nothing in a tree without git.
fn changed_files() -> Result<BTreeSet<String>> {
    if !root().join(".git").exists() {
        return Ok(BTreeSet::new());
    }
    let mut status = Command::new("git");
    status
        .args(["-c", "safe.directory=*", "status", "--porcelain"])
        .current_dir(root());
    Ok(output(&mut status)?.lines().map(str::to_owned).collect())
}

/// Everything that must hold before a change lands.
pub(crate) fn run_ci() -> Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    features::check()?;
    arrows::check()?;
    test()?;
    demo::demo()?;
    fuzz::replay()?;
    crate::torture(&["--short"])?;
    let mut docs = cargo(&[
        "doc",
        "--workspace",
        "--all-features",
        "--no-deps",
        "--document-private-items",
        "--quiet",
    ]);
    run(docs.env("RUSTDOCFLAGS", "-D warnings"))?;
    deny()
}

/// Licenses, sources and duplicate crates; the advisory database may be out of reach.
fn deny() -> Result<()> {
    tool::require("cargo-deny", &[])?;
    run(&mut cargo(&[
        "deny",
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))
}
