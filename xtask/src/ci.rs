//! `cargo xtask test` and `cargo xtask ci`.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::dist::{self, Profile};
use crate::packages;
use crate::run::{cargo, run};
use crate::torture;

/// Builds everything and runs every test.
pub(crate) fn test() -> Result<()> {
    packages::require(packages::TEST)?;
    dist::build(Profile::Dev)?;
    run(&mut cargo(&["test", "--workspace", "--quiet"]))
}

/// Everything that must hold before a change lands.
pub(crate) fn run_ci() -> Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    test()?;
    torture::command(&["--short"])?;
    let mut docs = cargo(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--quiet",
    ]);
    run(docs.env("RUSTDOCFLAGS", "-D warnings"))?;
    deny()
}

/// Licenses, sources and duplicate crates; the advisory database may be out of reach.
fn deny() -> Result<()> {
    let present = Command::new("cargo-deny")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !present.is_ok_and(|status| status.success()) {
        eprintln!("installing cargo-deny");
        run(&mut cargo(&[
            "install",
            "--locked",
            "--quiet",
            "cargo-deny",
        ]))?;
    }
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
