//! `cargo xtask package`: builds the Debian and RPM packages, in `target/package`.

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
use xtask::run::{output, project_root};

use crate::contents::{DEBUG, FileSource, PACKAGES, Package};
use crate::install_tree::{InstallTrees, sorted_entries};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        [] => build_and_print_path(),
        ["--check"] => check_packages(),
        ["--try"] => fresh_root::check_in_all_suites(&project_root().join("target/package")),
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

/// Builds the packages in `target/package`, checks the libraries that they need, and prints the directory.
fn build_and_print_path() -> Result<()> {
    let to = project_root().join("target/package");
    build_packages(&project_root().join("target/package-build"), &to)?;
    println!("{}", to.display());
    Ok(())
}

/// Builds the packages, and installs, uses, upgrades and removes them in new systems. Then builds them again and
/// compares the checksums.
fn check_packages() -> Result<()> {
    build_and_print_path()?;
    let first = project_root().join("target/package");
    fresh_root::check_in_all_suites(&first)?;
    let again = project_root().join("target/package-again");
    build_packages(&project_root().join("target/package-build-again"), &again)?;
    let sums = |directory: &Path| fs::read_to_string(directory.join(CHECKSUM_FILE));
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

/// File with the SHA-256 sums of all other files.
const CHECKSUM_FILE: &str = "SHA256SUMS";

/// Builds all packages in a cargo target directory of their own. Writes them with their bills of materials and
/// checksums to the directory `to`, in place of what is there. Fails if a program needs a newer glibc or another
/// library than allowed.
fn build_packages(target: &Path, to: &Path) -> Result<()> {
    packages::ensure_installed(packages::PACKAGE)?;
    let epoch = source_date_epoch()?;
    let trees = InstallTrees {
        build_dir: toolchain::build_programs(target, epoch)?,
        trees_dir: target.join("trees"),
        epoch,
    };
    for directory in [&trees.trees_dir, to] {
        if directory.exists() {
            fs::remove_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    for package in PACKAGES {
        trees.lay_out_package(package)?;
        check_dependencies(&trees, package)?;
    }
    trees.lay_out_package(&DEBUG)?;
    for package in PACKAGES.iter().chain([&DEBUG]) {
        let tree = trees.tree_dir(package);
        deb::build_deb(package, env!("CARGO_PKG_VERSION"), &tree, to, epoch)?;
        rpm::build_rpm(package, &tree, to, epoch)?;
        copy_sbom(package, &tree, to)?;
    }
    write_checksums(to)
}

/// Checks the glibc and the libraries that the programs and libraries of a package need. Fails if others are needed
/// than allowed.
fn check_dependencies(trees: &InstallTrees, package: &Package) -> Result<()> {
    for file in package.files {
        let installed = trees.tree_dir(package).join(file.to);
        match file.from {
            FileSource::Program(_) => glibc_floor::check_needed_libraries(&installed)?,
            FileSource::Library(_) => glibc_floor::check_plugin(&installed)?,
            FileSource::Archive(_)
            | FileSource::Tree(_)
            | FileSource::Commented(_)
            | FileSource::Manual
            | FileSource::Completion(_)
            | FileSource::Book
            | FileSource::Sdk => {}
        }
    }
    Ok(())
}

/// Copies the bill of materials beside the package, so that users can read it without unpacking. Does nothing for a
/// package without code.
fn copy_sbom(package: &Package, tree: &Path, to: &Path) -> Result<()> {
    if package.built_from.is_none() {
        return Ok(());
    }
    let name = sbom::bill_file_name(package.name);
    let bill = tree.join("usr/share/doc").join(package.name).join(&name);
    fs::copy(&bill, to.join(name)).with_context(|| bill.display().to_string())?;
    Ok(())
}

/// Writes [`CHECKSUM_FILE`] for all files of a directory.
fn write_checksums(to: &Path) -> Result<()> {
    let files: Vec<PathBuf> = sorted_entries(to)?;
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = output(Command::new("sha256sum").args(names).current_dir(to))?;
    fs::write(to.join(CHECKSUM_FILE), sums)?;
    Ok(())
}

/// Returns the time of all packaged files, in seconds since 1970: `SOURCE_DATE_EPOCH`, or else the time of the commit.
fn source_date_epoch() -> Result<u64> {
    if let Ok(set) = std::env::var("SOURCE_DATE_EPOCH") {
        return set.parse().context("SOURCE_DATE_EPOCH is not a number");
    }
    let mut log = Command::new("git");
    // In a container, the checkout may belong to another user.
    log.args(["-c", "safe.directory=*", "log", "-1", "--format=%ct"])
        .current_dir(project_root());
    let seconds = output(&mut log).context("not a git tree: set SOURCE_DATE_EPOCH")?;
    seconds.trim().parse().context("git log changed")
}
