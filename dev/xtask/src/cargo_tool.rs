//! Programs of crates.io that a command runs.

use std::process::{Command, Stdio};

use anyhow::Result;

use xtask::run::{cargo_command, run};

/// Installs the program `name` from crates.io, unless `NAME --version` succeeds. `options` are those of `cargo
/// install`. Builds it without optimization, because it runs for seconds only.
pub(crate) fn ensure_installed(name: &str, options: &[&str]) -> Result<()> {
    let mut version = Command::new(name);
    version.arg("--version").stdout(Stdio::null());
    if version.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    eprintln!("installing {name}");
    let mut install = cargo_command(&["install", "--debug", "--locked", "--quiet"]);
    run(install.args(options).arg(name))
}
