//! Packages from npm's registry, which all tests share.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::net_client::run_client;

/// Downloads a package, `NAME@VERSION`, without its dependencies, unless an earlier call has. Returns the directory in
/// `target/node` that it was unpacked to.
///
/// # Errors
/// npm is not installed, or its registry has no such package.
pub fn install_package(package: &str) -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node");
    let directory = target.join(package);
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let directory = directory.canonicalize()?;
    let done = directory.join("done");
    // Tests run in parallel, in several processes: the first one downloads, the others wait.
    let lock = File::create(directory.join("lock"))?;
    lock.lock()?;
    if !done.exists() {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--pack-destination"]);
        run_client(npm.arg(&directory).arg(package)).context("npm, of nodejs")?;
        let archive = directory.join(format!("{}.tgz", package.replace('@', "-")));
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--gzip", "--file"]).arg(archive);
        run_client(tar.arg("--directory").arg(&directory))?;
        File::create(&done)?;
    }
    Ok(directory.join("package"))
}
