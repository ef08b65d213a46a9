//! Systems that never saw memprof, in which the packages are installed, used, upgraded and removed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::contents::PACKAGES;
use crate::install_tree::entries;
use crate::{deb, toolchain};
use xtask::run::{output, root, run};

/// Debian's releases whose packages are still served, the oldest first: glibc 2.31, 2.36 and 2.41.
const SUITES: [&str; 3] = ["bullseye", "bookworm", "trixie"];

/// What the scripts use.
const INCLUDED: &str = "--include=bash-completion,fish,libjemalloc2,man-db,procps,rpm,systemd,zsh";

/// What is done in each system; each script ends at its first failure.
const SCRIPTS: [(&str, &str); 3] = [
    ("install", include_str!("fresh_root/install.sh")),
    ("use", include_str!("fresh_root/use.sh")),
    ("upgrade", include_str!("fresh_root/upgrade.sh")),
];
const REMOVE: &str = include_str!("fresh_root/remove.sh");

const NEWEST: &str = "trixie";
/// There alone: an older systemd, as that of bullseye, verifies only where it runs the system.
const UNITS: &str = include_str!("fresh_root/units.sh");
const BY_RPM: &str = include_str!("fresh_root/rpm.sh");

/// Tries the packages of a directory.
pub(crate) fn check(packages: &Path) -> Result<()> {
    for suite in SUITES {
        in_debian(suite, packages)?;
        println!("{suite}: installed, used, upgraded and removed");
    }
    Ok(())
}

fn in_debian(suite: &str, packages: &Path) -> Result<()> {
    let place = tempfile::tempdir()?;
    let system = place.path().join(suite);
    eprintln!("making {suite}");
    run(Command::new("mmdebstrap")
        .args(["--quiet", "--variant=apt", INCLUDED, suite])
        .arg(&system))?;
    copy_packages(packages, &system)?;
    let before = listed(&system)?;
    for (name, script) in SCRIPTS {
        let told = run_in_system(&system, script).with_context(|| format!("{suite}: {name}"))?;
        println!("{told}");
    }
    if suite == NEWEST {
        run_in_system(&system, UNITS).with_context(|| format!("{suite}: units"))?;
    }
    run_in_system(&system, REMOVE).with_context(|| format!("{suite}: remove"))?;
    let after = listed(&system)?;
    let left: Vec<_> = after.iter().filter(|file| !before.contains(file)).collect();
    ensure!(left.is_empty(), "{suite}: removal left {left:#?}");
    if suite == NEWEST {
        run_in_system(&system, BY_RPM).with_context(|| format!("{suite}: by rpm"))?;
        println!("{suite}: by rpm installed, verified, used and removed");
    }
    Ok(())
}

/// Puts the packages there, newer ones of the plugin, and a program that knows nothing of memprof.
fn copy_packages(packages: &Path, system: &Path) -> Result<()> {
    let place = system.join("packages");
    fs::create_dir(&place)?;
    for file in entries(packages)? {
        if file
            .extension()
            .is_some_and(|end| end == "deb" || end == "rpm")
        {
            let name = file.file_name().context("a package has no name")?;
            fs::copy(&file, place.join(name))?;
        }
    }
    let newer = place.join("newer");
    fs::create_dir(&newer)?;
    for package in PACKAGES {
        let tree = tempfile::tempdir()?;
        let name = format!("{}_{}_amd64.deb", package.name, env!("CARGO_PKG_VERSION"));
        run(Command::new("dpkg-deb")
            .arg("--extract")
            .args([&place.join(name), tree.path()]))?;
        let version = concat!(env!("CARGO_PKG_VERSION"), "+1");
        deb::build(package, version, tree.path(), &newer, 0)?;
    }
    let program = root().join("hosts-examples/unprepared/unprepared.c");
    toolchain::compile_c(&program, &place.join("unprepared"))
}

/// Runs a script with bash in a system, with processes and mounts of its own.
fn run_in_system(system: &Path, script: &str) -> Result<String> {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(format!("--root={}", system.display()))
        .args(["/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"])
        .args([
            "HOME=/tmp",
            "LC_ALL=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
        ])
        .args(["bash", "-euo", "pipefail", "-c", script]);
    output(&mut command)
}

/// What a system's own tools write.
const NOT_OURS: [&str; 6] = [
    "./run/*",
    "./tmp/*",
    "./var/cache/*",
    "./var/lib/apt/*",
    "./var/lib/dpkg/*",
    "./var/log/*",
];

/// Every file of a system, but for [`NOT_OURS`].
fn listed(system: &Path) -> Result<Vec<String>> {
    let mut find = Command::new("find");
    find.args([".", "-xdev"]).current_dir(system);
    for pattern in NOT_OURS {
        find.args(["-not", "-path", pattern]);
    }
    Ok(output(&mut find)?.lines().map(str::to_owned).collect())
}
