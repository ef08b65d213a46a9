//! Builds for an old glibc with cargo-zigbuild and zig, from Python's package index, in a Python environment of their
//! own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask::run::{cargo_command, project_root, run};

/// Oldest glibc that the packages run on: RHEL 7's.
pub(crate) const MIN_GLIBC: &str = "2.17";

const TARGET: &str = "x86_64-unknown-linux-gnu";

const TOOLS: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.15.2"];

/// Cargo packages to build. Each is built alone, because one build of all would unify their features.
const PACKAGES: [&str; 5] = [
    "memory-profile",
    "memprof-adapters-c",
    "memprof-cli",
    "memprof-host-c",
    "memprof-fleet",
];

/// Installs the tools if they are missing, and builds all [`PACKAGES`] in the cargo target directory `target`. `epoch`
/// is the time of the commit in seconds since 1970, which takes the place of the build's time.
///
/// Returns the directory with the built files.
pub(crate) fn build_programs(target: &Path, epoch: u64) -> Result<PathBuf> {
    let tools = install_tools()?;
    for package in PACKAGES {
        eprintln!("building {package} for glibc {MIN_GLIBC}");
        let mut command = cargo_command(&["zigbuild", "--quiet", "--release", "--locked"]);
        command
            .args(["--package", package])
            .arg(format!("--target={TARGET}.{MIN_GLIBC}"))
            .arg("--target-dir")
            .arg(target)
            .env("PATH", path_variable_with(&tools)?)
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

/// Compiles a program of one C file for [`MIN_GLIBC`].
pub(crate) fn compile_c_program(source: &Path, to: &Path) -> Result<()> {
    let mut zig = Command::new(install_tools()?.join("python"));
    zig.args(["-m", "ziglang", "cc"])
        .arg(format!("--target=x86_64-linux-gnu.{MIN_GLIBC}"))
        .args(["-g", "-O1", "-fno-sanitize=undefined", "-o"]);
    run(zig.arg(to).arg(source))
}

/// Installs the tools, and returns the directory with cargo-zigbuild and a Python that has zig.
fn install_tools() -> Result<PathBuf> {
    let environment = project_root().join("target/package-tools");
    let bin = environment.join("bin");
    if !bin.join("pip").exists() {
        run(Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(&environment))?;
    }
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    run(pip.args(TOOLS))?;
    Ok(bin)
}

/// Returns the value of `PATH` with this directory first.
fn path_variable_with(directory: &Path) -> Result<OsString> {
    let before = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::iter::once(directory.to_owned()).chain(std::env::split_paths(&before));
    std::env::join_paths(directories).context("PATH cannot hold the tools' directory")
}

/// Returns the flags for rustc that make the build independent of the machine's paths, and give each file a build id.
fn rustc_flags(target: &Path) -> Result<Vec<String>> {
    let path_renames = path_renames(target)?.into_iter();
    let flags = path_renames.map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    // Profiles identify files by their build id.
    let build_id = "-Clink-arg=-Wl,--build-id=sha1".to_owned();
    Ok(flags.chain([build_id]).collect())
}

/// Returns the flags for the C compiler that make the build independent of the machine's paths.
fn cc_flags(target: &Path) -> Result<Vec<String>> {
    let path_renames = path_renames(target)?.into_iter();
    Ok(path_renames
        .map(|(from, to)| format!("-ffile-prefix-map={from}={to}"))
        .collect())
}

/// Returns prefixes of this machine's paths and their replacements in the built files: those of cargo's home
/// (`CARGO_HOME`, else `~/.cargo`), of the sources and of `target`. For the compilers, the last one that matches
/// counts.
fn path_renames(target: &Path) -> Result<[(String, String); 3]> {
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
        (text(&project_root())?, source.clone()),
        (text(target)?, format!("{source}/target")),
    ])
}
