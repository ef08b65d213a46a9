//! `cargo xtask build`: everything, laid out in `target/dist` as it would be installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages;
use crate::run::{cargo_command, project_root, run};

mod sdk;

pub use sdk::{SDK, lay_out_sdk, pack_sdk};

/// Cargo profile of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build, for the demo and tests.
    Dev,
    /// Optimized, as an operator installs it.
    Release,
}

/// Returns the directory in which everything lies as it would be installed: `target/dist`.
pub fn dist_dir() -> PathBuf {
    project_root().join("target/dist")
}

/// Package, file that cargo builds of it, and path below [`dist_dir`].
type BuiltArtifact = (&'static str, &'static str, &'static str);

const MEMORY_PROFILE: BuiltArtifact = (
    "memory-profile",
    "libmemory_profile.so",
    "plugins/memory_profile.so",
);
const RUST_HOST: BuiltArtifact = ("rust-host", "rust_host", "examples/rust_host");
const MEMPROF: BuiltArtifact = ("memprof-cli", "memprof", "bin/memprof");

/// Libraries that foreign processes load. Each is built alone, because cargo would add the features of packages that
/// are built with it: `hello_rust.so` would export the entries of every adapter.
const LIBRARIES: &[BuiltArtifact] = &[
    MEMORY_PROFILE,
    ("hello-rust", "libhello_rust.so", "plugins/hello_rust.so"),
    (
        "memprof-host-c",
        "libmemprof_host.a",
        "lib/libmemprof_host.a",
    ),
    (
        "memprof-adapters-c",
        "libmemprof_adapters.a",
        "lib/libmemprof_adapters.a",
    ),
];

/// Programs that are built together.
const PROGRAMS: &[BuiltArtifact] = &[
    MEMPROF,
    RUST_HOST,
    ("rust-host", "plain_rust", "examples/plain_rust"),
    ("rust-http", "rust_http", "examples/rust_http"),
    ("tokio-labels", "tokio_labels", "examples/tokio_labels"),
];

/// Builds everything, also `memprof-fleet`, whose libraries take minutes, into `target/dist`, and installs its systemd
/// unit there.
pub fn build_all(profile: Profile) -> Result<()> {
    let fleet: BuiltArtifact = ("memprof-fleet", "memprof-fleet", "bin/memprof-fleet");
    build_with_programs(&[PROGRAMS, &[fleet]].concat(), profile)?;
    let unit = project_root().join("outside/memprof-fleet/memprof-agent.service");
    install_file(
        &unit,
        &dist_dir().join("lib/systemd/system/memprof-agent.service"),
    )
}

/// Builds everything but `memprof-fleet` into `target/dist`.
pub fn build_without_fleet(profile: Profile) -> Result<()> {
    build_with_programs(PROGRAMS, profile)
}

/// Installs the missing compilers. Builds these programs, and the libraries, headers, SDK and C programs, into
/// `target/dist`.
fn build_with_programs(programs: &[BuiltArtifact], profile: Profile) -> Result<()> {
    packages::ensure_installed(packages::BUILD)?;
    build_libraries(LIBRARIES, profile)?;
    build_and_install_programs(programs, profile)?;
    for header in sdk::HEADERS {
        let name = Path::new(header).file_name().expect("a header's file");
        install_file(
            &project_root().join(header),
            &dist_dir().join("include").join(name),
        )?;
    }
    let exports = project_root().join("in-process/memprof-adapters-c/adapters.map");
    install_file(&exports, &dist_dir().join("lib/adapters.map"))?;
    lay_out_sdk(&dist_dir().join("sdk"))?;
    compile_c_programs()
}

/// Builds only what the demo runs.
pub fn build_demo_programs() -> Result<()> {
    packages::ensure_installed(&["gcc"])?;
    build_libraries(&[MEMORY_PROFILE], Profile::Dev)?;
    build_and_install_programs(&[MEMPROF, RUST_HOST], Profile::Dev)?;
    compile_unprepared()
}

/// Builds `torture/unwind_probe.so`, which torture and bench preload, with a profile of cargo. Also builds the library
/// of memprof-unwind; `torture unwind` reads the one of [`Profile::Dev`] where cargo has written it.
pub fn build_unwind_probe(profile: Profile) -> Result<()> {
    build_packages(&["memprof-unwind", "unwind-probe"], profile)?;
    let probe = (
        "unwind-probe",
        "libunwind_probe.so",
        "torture/unwind_probe.so",
    );
    install_artifact(&probe, profile)
}

/// Builds libraries, each alone: together, one may get features that another requests.
fn build_libraries(list: &[BuiltArtifact], profile: Profile) -> Result<()> {
    for built in list {
        build_packages(&[built.0], profile)?;
        install_artifact(built, profile)?;
    }
    Ok(())
}

/// Builds programs, and copies them to `target/dist`. Programs for development share the features of the whole
/// workspace, as in [`build_programs`].
fn build_and_install_programs(list: &[BuiltArtifact], profile: Profile) -> Result<()> {
    match profile {
        Profile::Dev => build_programs(list.iter().map(|built| built.1))?,
        Profile::Release => {
            let packages: Vec<_> = list.iter().map(|built| built.0).collect();
            build_packages(&packages, profile)?;
        }
    }
    list.iter()
        .try_for_each(|built| install_artifact(built, profile))
}

/// Builds programs for development, in `target/debug`. Their libraries get the features that the whole workspace and
/// its tests request, so that the tests need not build them again.
pub fn build_programs<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<()> {
    let mut command = cargo_command(&["build", "--quiet", "--workspace"]);
    // Cargo unites the features of dev-dependencies only if it builds an example or a test, so build a small one too.
    command.args(["--example", "admin_host"]);
    for name in names {
        command.args(["--bin", name.as_ref()]);
    }
    run(&mut command)
}

/// Copies a file that cargo has built with this profile to its path in `target/dist`.
fn install_artifact((_, built, path): &BuiltArtifact, profile: Profile) -> Result<()> {
    install_file(&built_dir(profile).join(built), &dist_dir().join(path))
}

/// Builds cargo packages, with no other features than they request themselves.
pub fn build_packages(packages: &[&str], profile: Profile) -> Result<()> {
    let mut command = cargo_command(&["build", "--quiet"]);
    for package in packages {
        command.args(["--package", package]);
    }
    if profile == Profile::Release {
        command.arg("--release");
    }
    run(&mut command)
}

/// Returns the directory in which cargo puts the programs and libraries of a profile.
pub fn built_dir(profile: Profile) -> PathBuf {
    project_root().join(match profile {
        Profile::Dev => "target/debug",
        Profile::Release => "target/release",
    })
}

/// Returns the path of the static library for hosts in C, which must be built. Fails if the path is not UTF-8.
pub fn host_library_path() -> Result<String> {
    let library = dist_dir().join("lib/libmemprof_host.a");
    let library = library.to_str();
    Ok(library
        .context("the path of target/dist is not UTF-8")?
        .to_owned())
}

/// Returns the linker arguments of a program with the static library at `host_library`.
pub fn host_link_args(host_library: &str) -> [&str; 4] {
    [host_library, "-lpthread", "-ldl", "-lm"]
}

/// Returns the linker arguments of [`host_link_args`], and those that link jemalloc statically. The program does not
/// export jemalloc's symbols (no -rdynamic): only its symbol table has them.
pub fn host_link_args_with_jemalloc(host_library: &str) -> [&str; 6] {
    [
        host_library,
        "-l:libjemalloc.a",
        "-lstdc++",
        "-lpthread",
        "-ldl",
        "-lm",
    ]
}

/// Compiles the example hosts and plugins in C and C++. The static library for hosts must be built.
fn compile_c_programs() -> Result<()> {
    let library = host_library_path()?;
    compile(
        "cc",
        "plugins/hello-c/hello_c.c",
        "plugins/hello_c.so",
        PLUGIN_LINK_ARGS,
    )?;
    compile(
        "cc",
        "hosts-examples/c/c_host.c",
        "examples/c_host",
        &host_link_args(&library),
    )?;
    compile(
        "cc",
        "hosts-examples/c/c_host.c",
        "examples/c_host_static",
        &host_link_args_with_jemalloc(&library),
    )?;
    compile(
        "c++",
        "hosts-examples/cpp/cpp_host.cc",
        "examples/cpp_host",
        &host_link_args(&library),
    )?;
    compile_unprepared()?;
    compile(
        "cc",
        "hosts-examples/c-minimal/c_minimal.c",
        "examples/c_minimal",
        &["-ldl"],
    )
}

/// Compiles the example `unprepared`, a program that knows nothing of memprof.
fn compile_unprepared() -> Result<()> {
    let source = "hosts-examples/unprepared/unprepared.c";
    compile("cc", source, "examples/unprepared", &[])
}

/// Linker arguments of a plugin in C.
const PLUGIN_LINK_ARGS: &[&str] = &[
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wl,-z,nodelete,-Bsymbolic",
];

/// Compiles one file of C or C++ to the path `to` below [`dist_dir`], with warnings as errors.
pub fn compile(compiler: &str, source: &str, to: &str, options: &[&str]) -> Result<()> {
    let target = dist_dir().join(to);
    let fresh = fresh_path(&target);
    create_parent_dir(&target)?;
    let mut command = Command::new(compiler);
    command
        .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(dist_dir().join("include"))
        .arg("-o")
        .arg(&fresh)
        .arg(project_root().join(source))
        .args(options);
    run(&mut command)?;
    replace_if_changed(&target, &fresh)
}

/// Copies a file, and creates the directories of `to` if they are missing. Replaces an old file by a rename, and keeps
/// an equal one.
pub fn install_file(from: &Path, to: &Path) -> Result<()> {
    create_parent_dir(to)?;
    let fresh = fresh_path(to);
    fs::copy(from, &fresh).with_context(|| format!("failed to copy {}", from.display()))?;
    replace_if_changed(to, &fresh)
}

/// Replaces `target` by `fresh` by a rename, because a host may have mapped the old file. If both are equal, keeps
/// `target`, so that no host of a running test maps a deleted file.
fn replace_if_changed(target: &Path, fresh: &Path) -> Result<()> {
    let same = fs::read(target).is_ok_and(|old| fs::read(fresh).is_ok_and(|new| old == new));
    let done = match same {
        true => fs::remove_file(fresh),
        false => fs::rename(fresh, target),
    };
    done.with_context(|| target.display().to_string())
}

/// Returns the path beside a file at which its next version is written.
fn fresh_path(target: &Path) -> PathBuf {
    target.with_added_extension("new")
}

/// Creates the directory of a file, and those above it, if they are missing.
fn create_parent_dir(target: &Path) -> Result<()> {
    let directory = target.parent().expect("a place in target/dist");
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}
