//! Programs of crates.io that a command runs.

use std::process::{Command, Stdio};

use anyhow::Result;

use xtask::run::{cargo, run};

/// Installs it where it is missing. It runs for seconds: to optimize it would take longer.
pub(crate) fn require(name: &str, options: &[&str]) -> Result<()> {
    let mut version = Command::new(name);
    version.arg("--version").stdout(Stdio::null());
    if version.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    eprintln!("installing {name}");
    let mut install = cargo(&["install", "--debug", "--locked", "--quiet"]);
    run(install.args(options).arg(name))
}
