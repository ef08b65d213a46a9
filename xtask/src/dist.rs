//! `cargo xtask build`: everything, laid out in `target/dist` as it would be installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages;
use crate::run::{cargo, root, run};

/// KiB of thread-local variables in the programs that are built for this suite.
pub(crate) const TLS_SIZES: [u32; 6] = [64, 220, 232, 256, 1024, 4096];

/// Which cargo profile to build with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quick to build; what demo and tests use.
    Dev,
    /// What an operator installs.
    Release,
}

/// Where everything is laid out.
pub(crate) fn dist() -> PathBuf {
    root().join("target/dist")
}

/// Plugins and programs: package, the file cargo makes, where it goes.
const CARGO: &[(&str, &str, &str)] = &[
    ("memprof-cli", "memprof", "bin/memprof"),
    (
        "memory-profile",
        "libmemory_profile.so",
        "plugins/memory_profile.so",
    ),
    ("hello-rust", "libhello_rust.so", "plugins/hello_rust.so"),
    (
        "memprof-host-c",
        "libmemprof_host.a",
        "lib/libmemprof_host.a",
    ),
    ("rust-host", "rust_host", "examples/rust_host"),
    ("rust-host", "plain_rust", "examples/plain_rust"),
    ("rust-http", "rust_http", "examples/rust_http"),
];

/// Builds everything, `memprof-fleet` too, whose libraries take minutes.
pub(crate) fn build_all(profile: Profile) -> Result<()> {
    build(profile)?;
    build_package("memprof-fleet", profile)?;
    let built = built_dir(profile).join("memprof-fleet");
    install(&built, &dist().join("bin/memprof-fleet"))?;
    let unit = root().join("memprof-fleet/memprof-agent.service");
    install(
        &unit,
        &dist().join("lib/systemd/system/memprof-agent.service"),
    )
}

/// Builds all that one machine needs. One cargo call for each package: a workspace build would unify features
/// into the plugins.
pub(crate) fn build(profile: Profile) -> Result<()> {
    packages::require(packages::BUILD)?;
    for (package, built, place) in CARGO {
        build_package(package, profile)?;
        install(&built_dir(profile).join(built), &dist().join(place))?;
    }
    for header in [
        "memprof-plugin-abi/include/memprof.h",
        "memprof-host-c/include/memprof_host.h",
    ] {
        let name = Path::new(header).file_name().expect("a header's file");
        install(&root().join(header), &dist().join("include").join(name))?;
    }
    build_c()
}

fn build_package(package: &str, profile: Profile) -> Result<()> {
    let mut command = cargo(&["build", "--quiet", "--package", package]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    run(&mut command)
}

fn built_dir(profile: Profile) -> PathBuf {
    root().join(match profile {
        Profile::Dev => "target/debug",
        Profile::Release => "target/release",
    })
}

/// The host of `cargo xtask torture`, without a jemalloc and with one; after [`build`].
pub(crate) fn build_torture() -> Result<()> {
    let source = "xtask/src/torture/stress_host.c";
    let library = host_library()?;
    compile("cc", source, "torture/stress_host", &dynamic(&library))?;
    let place = "torture/stress_host_static";
    compile("cc", source, place, &with_jemalloc(&library))?;
    let forker = "xtask/src/torture/forker.c";
    compile("cc", forker, "torture/forker", &dynamic(&library))?;
    let accuracy = "xtask/src/torture/accuracy.c";
    compile("cc", accuracy, "torture/accuracy", &dynamic(&library))?;
    for name in ["waits", "weather"] {
        let source = format!("xtask/src/torture/attach/{name}.c");
        let place = format!("torture/{name}");
        compile("cc", &source, &place, &["-lpthread", "-ldl"])?;
    }
    let guest = "xtask/src/torture/guest.c";
    compile("cc", guest, "torture/guest", &[])?;
    for kib in TLS_SIZES {
        let define = format!("-DTLS_KIB={kib}");
        let place = |name: String| format!("torture/{name}");
        compile("cc", guest, &place(tls_guest(kib)), &[&define])?;
        let options = [&dynamic(&library)[..], &[&define]].concat();
        compile("cc", source, &place(tls_host(kib)), &options)?;
    }
    build_unwind(Profile::Dev)
}

/// The file of `target/dist/torture`.
pub(crate) fn tls_guest(kib: u32) -> String {
    format!("guest_tls_{kib}")
}

/// The file of `target/dist/torture`.
pub(crate) fn tls_host(kib: u32) -> String {
    format!("stress_host_tls_{kib}")
}

/// The probe, and what it is tried in.
pub(crate) fn build_unwind(profile: Profile) -> Result<()> {
    build_package("memprof-unwind", profile)?;
    build_package("unwind-probe", profile)?;
    let probe = built_dir(profile).join("libunwind_probe.so");
    install(&probe, &dist().join("torture/unwind_probe.so"))?;
    let compile = |source, place, options: &[&str]| {
        compile("cc", &format!("xtask/src/unwind/{source}"), place, options)
    };
    let threads = ["-lpthread", "-ldl"];
    compile("micro.c", "torture/micro", &threads)?;
    compile("hazards.c", "torture/hazards", &threads)?;
    let without = [&threads[..], &["-Wl,--no-eh-frame-hdr"]].concat();
    compile("hazards.c", "torture/hazards_without_hdr", &without)?;
    let library = ["-shared", "-fPIC"];
    let small = [&library[..], &["-DFRAME=64"]].concat();
    compile("library.c", "torture/library_a.so", &small)?;
    let large = [&library[..], &["-DFRAME=96"]].concat();
    compile("library.c", "torture/library_b.so", &large)
}

/// The program of `cargo xtask bench sampler`; after [`build`].
pub(crate) fn build_pairs() -> Result<()> {
    let library = host_library()?;
    compile(
        "cc",
        "xtask/src/bench/pairs.c",
        "bench/pairs",
        &dynamic(&library),
    )
}

fn host_library() -> Result<String> {
    let library = dist().join("lib/libmemprof_host.a");
    let library = library.to_str();
    Ok(library
        .context("the path of target/dist is not UTF-8")?
        .to_owned())
}

fn dynamic(host_library: &str) -> [&str; 4] {
    [host_library, "-lpthread", "-ldl", "-lm"]
}

/// Not exported (-rdynamic), so that only its symbol table tells of it.
fn with_jemalloc(host_library: &str) -> [&str; 6] {
    [
        host_library,
        "-l:libjemalloc.a",
        "-lstdc++",
        "-lpthread",
        "-ldl",
        "-lm",
    ]
}

/// What is not Rust.
fn build_c() -> Result<()> {
    let library = host_library()?;
    compile(
        "cc",
        "plugins/hello-c/hello_c.c",
        "plugins/hello_c.so",
        PLUGIN,
    )?;
    compile(
        "cc",
        "hosts-examples/c/c_host.c",
        "examples/c_host",
        &dynamic(&library),
    )?;
    compile(
        "cc",
        "hosts-examples/c/c_host.c",
        "examples/c_host_static",
        &with_jemalloc(&library),
    )?;
    compile(
        "c++",
        "hosts-examples/cpp/cpp_host.cc",
        "examples/cpp_host",
        &dynamic(&library),
    )?;
    compile(
        "cc",
        "hosts-examples/unprepared/unprepared.c",
        "examples/unprepared",
        &[],
    )?;
    compile(
        "cc",
        "hosts-examples/c-minimal/c_minimal.c",
        "examples/c_minimal",
        &["-ldl"],
    )
}

/// How a plugin in C is linked.
const PLUGIN: &[&str] = &["-shared", "-fPIC", "-Wl,-z,nodelete"];

/// Compiles one file of C or C++, with warnings as errors.
fn compile(compiler: &str, source: &str, place: &str, options: &[&str]) -> Result<()> {
    let target = dist().join(place);
    let fresh = fresh_name(&target);
    prepare(&target)?;
    let mut command = Command::new(compiler);
    command
        .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(dist().join("include"))
        .arg("-o")
        .arg(&fresh)
        .arg(root().join(source))
        .args(options);
    run(&mut command)?;
    fs::rename(&fresh, &target).with_context(|| target.display().to_string())
}

/// Puts a file in its place by rename: a host that has the old one mapped keeps it.
fn install(from: &Path, to: &Path) -> Result<()> {
    prepare(to)?;
    let fresh = fresh_name(to);
    fs::copy(from, &fresh).with_context(|| format!("failed to copy {}", from.display()))?;
    fs::rename(&fresh, to).with_context(|| to.display().to_string())
}

fn fresh_name(target: &Path) -> PathBuf {
    target.with_added_extension("new")
}

fn prepare(target: &Path) -> Result<()> {
    let directory = target.parent().expect("a place in target/dist");
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}
