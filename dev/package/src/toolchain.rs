//! Builds for an old C library: cargo-zigbuild and zig, from Python's package index, in an environment of
//! their own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask::run::{cargo, root, run};

/// The oldest glibc that what is packaged runs on: RHEL 7's.
pub(crate) const FLOOR: &str = "2.17";

const TARGET: &str = "x86_64-unknown-linux-gnu";

const TOOLS: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.15.2"];

/// What is packaged of cargo's packages. Each is built alone: together they would unify features.
const PACKAGES: [&str; 4] = [
    "memory-profile",
    "memprof-cli",
    "memprof-host-c",
    "memprof-fleet",
];

/// Installs the tools where they are missing, and builds all that is packaged in `target`.
///
/// Returns the directory of what was built.
pub(crate) fn build(target: &Path, epoch: u64) -> Result<PathBuf> {
    let tools = tools()?;
    for package in PACKAGES {
        eprintln!("building {package} for glibc {FLOOR}");
        let mut command = cargo(&["zigbuild", "--quiet", "--release", "--locked"]);
        command
            .args(["--package", package])
            .arg(format!("--target={TARGET}.{FLOOR}"))
            .arg("--target-dir")
            .arg(target)
            .env("PATH", first_in_path(&tools)?)
            .env("SOURCE_DATE_EPOCH", epoch.to_string())
            .env("CARGO_ENCODED_RUSTFLAGS", rustc_flags(target)?.join("\x1f"))
            .env(
                format!("CFLAGS_{}", TARGET.replace('-', "_")),
                cc_flags(target)?.join(" "),
            );
        run(&mut command)?;
    }
    Ok(target.join(TARGET).join("release"))
}

/// Compiles a program of one C file for the same systems.
pub(crate) fn compile_c(source: &Path, to: &Path) -> Result<()> {
    let mut zig = Command::new(tools()?.join("python"));
    zig.args(["-m", "ziglang", "cc"])
        .arg(format!("--target=x86_64-linux-gnu.{FLOOR}"))
        .args(["-g", "-O1", "-fno-sanitize=undefined", "-o"]);
    run(zig.arg(to).arg(source))
}

/// The directory of cargo-zigbuild and of a Python that has zig.
fn tools() -> Result<PathBuf> {
    let place = root().join("target/package-tools");
    let bin = place.join("bin");
    if !bin.join("pip").exists() {
        run(Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(&place))?;
    }
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    run(pip.args(TOOLS))?;
    Ok(bin)
}

fn first_in_path(directory: &Path) -> Result<OsString> {
    let before = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::iter::once(directory.to_owned()).chain(std::env::split_paths(&before));
    std::env::join_paths(directories).context("PATH cannot hold the tools' directory")
}

fn rustc_flags(target: &Path) -> Result<Vec<String>> {
    let renamed = renamed(target)?.into_iter();
    let flags = renamed.map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    // Profiles name files by it.
    let build_id = "-Clink-arg=-Wl,--build-id=sha1".to_owned();
    Ok(flags.chain([build_id]).collect())
}

fn cc_flags(target: &Path) -> Result<Vec<String>> {
    let renamed = renamed(target)?.into_iter();
    Ok(renamed
        .map(|(from, to)| format!("-ffile-prefix-map={from}={to}"))
        .collect())
}

/// What paths of this machine are called in what is built. The last that fits counts.
fn renamed(target: &Path) -> Result<[(String, String); 3]> {
    let source = format!("/usr/src/memprof-{}", env!("CARGO_PKG_VERSION"));
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => std::env::home_dir()
            .context("HOME is not set")?
            .join(".cargo"),
    };
    let text = |path: &Path| {
        let text = path.to_str().context("a path is not UTF-8");
        text.map(str::to_owned)
    };
    Ok([
        (text(&cargo_home)?, "/usr/src/cargo".to_owned()),
        (text(&root())?, source.clone()),
        (text(target)?, format!("{source}/target")),
    ])
}
