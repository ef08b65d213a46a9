//! Python with packages of its index, in environments that all tests share.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::net_client::run_client;

/// The interpreter of an environment with these packages, `NAME==VERSION`. It is made when it is first asked for, with
/// pip, and lies in `target/python`.
///
/// # Errors
/// Python's `venv` is not installed, or a package cannot be had.
pub fn interpreter(packages: &[&str]) -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python");
    fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
    let place = target.canonicalize()?.join(packages.join("+"));
    let (python, done) = (place.join("bin/python"), place.join("done"));
    // Tests run at the same time, in several processes.
    let lock = File::create(place.with_added_extension("lock"))?;
    lock.lock()?;
    if !done.exists() {
        run_client(
            Command::new("/usr/bin/python3")
                .args(["-m", "venv", "--clear"])
                .arg(&place),
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
