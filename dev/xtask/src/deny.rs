//! `cargo xtask deny`: licences, sources and versions of the crates that are built in.

use anyhow::Result;

use xtask::run::{cargo_command, run};

use crate::cargo_tool;

/// Checks licences, sources and wildcard versions by cargo-deny. Advisories are left out, because their database may
/// be unreachable. Not part of CI, because cargo-deny takes minutes to build; a test of the crate `package` checks
/// licences and sources.
pub(crate) fn check_dependencies() -> Result<()> {
    cargo_tool::ensure_installed("cargo-deny", &[])?;
    let mut deny = cargo_command(&["deny", "--log-level", "error", "check"]);
    run(deny.args(["bans", "licenses", "sources"]))
}
