//! New Debian systems in which the packages are installed, used, upgraded and removed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::contents::PACKAGES;
use crate::install_tree::sorted_entries;
use crate::{deb, toolchain};
use xtask::run::{output, project_root, run};

/// Debian releases that mirrors still serve, oldest first: glibc 2.31, 2.36 and 2.41.
const SUITES: [&str; 3] = ["bullseye", "bookworm", "trixie"];

/// Packages that the scripts need.
const INCLUDE_OPTION: &str =
    "--include=bash-completion,fish,libjemalloc2,man-db,procps,rpm,systemd,zsh";

/// Scripts that run in each system; each one stops at its first failure.
const SCRIPTS: [(&str, &str); 3] = [
    ("install", include_str!("fresh_root/install.sh")),
    ("use", include_str!("fresh_root/use.sh")),
    ("upgrade", include_str!("fresh_root/upgrade.sh")),
];
const REMOVE_SCRIPT: &str = include_str!("fresh_root/remove.sh");

const NEWEST_SUITE: &str = "trixie";
/// Runs in the newest system only: the systemd of bullseye verifies units only if it has booted the system.
const UNITS_SCRIPT: &str = include_str!("fresh_root/units.sh");
const RPM_SCRIPT: &str = include_str!("fresh_root/rpm.sh");

/// Installs, uses, upgrades and removes the packages of a directory, in a new system of each suite.
pub(crate) fn check_in_all_suites(packages: &Path) -> Result<()> {
    for suite in SUITES {
        check_suite(suite, packages)?;
        println!("{suite}: installed, used, upgraded and removed");
    }
    Ok(())
}

/// Installs, uses, upgrades and removes the packages in a new system of this suite. The newest suite also checks the
/// systemd units, and installs the packages by rpm. Fails if a script fails, or if a file is left after the removal.
fn check_suite(suite: &str, packages: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let system = directory.path().join(suite);
    eprintln!("making {suite}");
    run(Command::new("mmdebstrap")
        .args(["--quiet", "--variant=apt", INCLUDE_OPTION, suite])
        .arg(&system))?;
    fill_packages_dir(packages, &system)?;
    let files_before = list_files(&system)?;
    for (name, script) in SCRIPTS {
        let report = run_in_system(&system, script).with_context(|| format!("{suite}: {name}"))?;
        println!("{report}");
    }
    if suite == NEWEST_SUITE {
        run_in_system(&system, UNITS_SCRIPT).with_context(|| format!("{suite}: units"))?;
    }
    run_in_system(&system, REMOVE_SCRIPT).with_context(|| format!("{suite}: remove"))?;
    let files_after = list_files(&system)?;
    let left_behind: Vec<_> = files_after
        .iter()
        .filter(|file| !files_before.contains(file))
        .collect();
    ensure!(
        left_behind.is_empty(),
        "{suite}: removal left {left_behind:#?}"
    );
    if suite == NEWEST_SUITE {
        run_in_system(&system, RPM_SCRIPT).with_context(|| format!("{suite}: by rpm"))?;
        println!("{suite}: by rpm installed, verified, used and removed");
    }
    Ok(())
}

/// Copies the packages to `/packages` of the system. Adds the packages in a newer version, for the upgrade, and a
/// program that was not built for memprof.
fn fill_packages_dir(packages: &Path, system: &Path) -> Result<()> {
    let directory = system.join("packages");
    fs::create_dir(&directory)?;
    for file in sorted_entries(packages)? {
        if file
            .extension()
            .is_some_and(|end| end == "deb" || end == "rpm")
        {
            let name = file.file_name().context("a package has no name")?;
            fs::copy(&file, directory.join(name))?;
        }
    }
    let newer = directory.join("newer");
    fs::create_dir(&newer)?;
    for package in PACKAGES {
        let tree = tempfile::tempdir()?;
        let name = format!("{}_{}_amd64.deb", package.name, env!("CARGO_PKG_VERSION"));
        run(Command::new("dpkg-deb")
            .arg("--extract")
            .args([&directory.join(name), tree.path()]))?;
        let version = concat!(env!("CARGO_PKG_VERSION"), "+1");
        deb::build_deb(package, version, tree.path(), &newer, 0)?;
    }
    let program = project_root().join("hosts-examples/unprepared/unprepared.c");
    toolchain::compile_c_program(&program, &directory.join("unprepared"))
}

/// Time limit of a script, in seconds: its loops wait for programs that may hang.
const SCRIPT_SECONDS: &str = "1800";

/// Runs a script with bash in a system, in process and mount namespaces of its own, and returns its output. Fails if
/// the script does, and, with the code 124 of timeout(1), after [`SCRIPT_SECONDS`].
fn run_in_system(system: &Path, script: &str) -> Result<String> {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", SCRIPT_SECONDS, "unshare"])
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

/// Paths that the system's own tools write.
const IGNORED_PATHS: [&str; 6] = [
    "./run/*",
    "./tmp/*",
    "./var/cache/*",
    "./var/lib/apt/*",
    "./var/lib/dpkg/*",
    "./var/log/*",
];

/// Lists all files of a system except [`IGNORED_PATHS`].
fn list_files(system: &Path) -> Result<Vec<String>> {
    let mut find = Command::new("find");
    find.args([".", "-xdev"]).current_dir(system);
    for pattern in IGNORED_PATHS {
        find.args(["-not", "-path", pattern]);
    }
    Ok(output(&mut find)?.lines().map(str::to_owned).collect())
}
