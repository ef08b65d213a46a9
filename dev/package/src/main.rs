//! `cargo xtask package`: what users install, in `target/package`.

mod contents;
mod deb;
mod fresh_root;
mod glibc_floor;
mod install_tree;
mod rpm;
mod sbom;
mod systemd_unit;
mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, ensure};
use xtask::packages;
use xtask::run::{output, root};

use crate::contents::{DEBUG, FileSource, PACKAGES, Package};
use crate::install_tree::{InstallTrees, entries};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        [] => package(),
        ["--check"] => check(),
        ["--try"] => fresh_root::check(&root().join("target/package")),
        _ => Err(anyhow!("usage: cargo xtask package [--check | --try]")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("package: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the packages, and asserts what they may need.
fn package() -> Result<()> {
    let to = root().join("target/package");
    make(&root().join("target/package-build"), &to)?;
    println!("{}", to.display());
    Ok(())
}

/// Builds them again elsewhere, compares, and installs, uses, upgrades and removes them in fresh systems.
fn check() -> Result<()> {
    package()?;
    let first = root().join("target/package");
    fresh_root::check(&first)?;
    let again = root().join("target/package-again");
    make(&root().join("target/package-build-again"), &again)?;
    let sums = |of: &Path| fs::read_to_string(of.join(SUMS));
    ensure!(
        sums(&first)? == sums(&again)?,
        "two builds of one commit differ: {} and {}",
        first.display(),
        again.display()
    );
    fs::remove_dir_all(&again)?;
    println!("two builds of one commit are the same bytes");
    Ok(())
}

const SUMS: &str = "SHA256SUMS";

/// All packages, from a cargo target directory of their own to `to`.
fn make(target: &Path, to: &Path) -> Result<()> {
    packages::require(packages::PACKAGE)?;
    let epoch = epoch()?;
    let trees = InstallTrees {
        built: toolchain::build(target, epoch)?,
        place: target.join("trees"),
        epoch,
    };
    for directory in [&trees.place, to] {
        if directory.exists() {
            fs::remove_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    for package in PACKAGES {
        trees.lay_out(package)?;
        assert_floor(&trees, package)?;
    }
    trees.lay_out(&DEBUG)?;
    for package in PACKAGES.iter().chain([&DEBUG]) {
        let tree = trees.of(package);
        deb::build(package, env!("CARGO_PKG_VERSION"), &tree, to, epoch)?;
        rpm::build(package, &tree, to, epoch)?;
        copy_bill(package, &tree, to)?;
    }
    sum(to)
}

fn assert_floor(trees: &InstallTrees, package: &Package) -> Result<()> {
    for file in package.files {
        let installed = trees.of(package).join(file.to);
        match file.from {
            FileSource::Program(_) => glibc_floor::check(&installed)?,
            FileSource::Library(_) => glibc_floor::check_plugin(&installed)?,
            FileSource::Archive(_)
            | FileSource::Tree(_)
            | FileSource::Commented(_)
            | FileSource::Manual
            | FileSource::Completion(_) => {}
        }
    }
    Ok(())
}

/// So that one reads it without unpacking a package.
fn copy_bill(package: &Package, tree: &Path, to: &Path) -> Result<()> {
    if package.built_from.is_none() {
        return Ok(());
    }
    let name = sbom::file_name(package.name);
    let bill = tree.join("usr/share/doc").join(package.name).join(&name);
    fs::copy(&bill, to.join(name)).with_context(|| bill.display().to_string())?;
    Ok(())
}

fn sum(to: &Path) -> Result<()> {
    let files: Vec<PathBuf> = entries(to)?;
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = output(Command::new("sha256sum").args(names).current_dir(to))?;
    fs::write(to.join(SUMS), sums)?;
    Ok(())
}

/// The time of the commit, which stands for the time of the build.
fn epoch() -> Result<u64> {
    if let Ok(set) = std::env::var("SOURCE_DATE_EPOCH") {
        return set.parse().context("SOURCE_DATE_EPOCH is not a number");
    }
    let mut log = Command::new("git");
    log.args(["-c", "safe.directory=*", "log", "-1", "--format=%ct"])
        .current_dir(root());
    let told = output(&mut log).context("not a git tree: set SOURCE_DATE_EPOCH")?;
    told.trim().parse().context("git log changed")
}
