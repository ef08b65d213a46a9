//! Python environments with packages from Python's index, which all tests share.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::net_client::run_client;

/// Installs these packages, `NAME==VERSION`, with pip into an environment of their own in `target/python`, unless an
/// earlier call has. Returns the interpreter of that environment.
///
/// # Errors
/// Python's `venv` is not installed, or pip cannot install a package.
pub fn install_packages(packages: &[&str]) -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python");
    fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
    let environment = target.canonicalize()?.join(packages.join("+"));
    let (python, done) = (environment.join("bin/python"), environment.join("done"));
    // Tests run in parallel, in several processes: the first one installs, the others wait.
    let lock = File::create(environment.with_added_extension("lock"))?;
    lock.lock()?;
    if !done.exists() {
        run_client(
            Command::new("/usr/bin/python3")
                .args(["-m", "venv", "--clear"])
                .arg(&environment),
        )
        .context("python3-venv: run `cargo xtask test`, or apt-get install python3-venv")?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet"]);
        pip.arg("--disable-pip-version-check").args(packages);
        run_client(&mut pip)?;
        File::create(&done)?;
    }
    Ok(python)
}
