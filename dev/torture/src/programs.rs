//! Builds the programs of the suites, in `target/dist/torture`; needs [`dist::build_all`] first.

use anyhow::Result;
use xtask::dist::{self, host_library_path, host_link_args, host_link_args_with_jemalloc};

/// KiB of thread-local variables in the programs for the suite `tls`.
pub(crate) const TLS_SIZES: [u32; 6] = [64, 220, 232, 256, 1024, 4096];

/// Builds the programs and libraries of all suites, into `target/dist/torture`. The library for hosts in C must be
/// built.
pub(crate) fn build_all() -> Result<()> {
    build_stress_host()?;
    let library = host_library_path()?;
    let target = "torture/stress_host_static";
    compile(
        "stress_host.c",
        target,
        &host_link_args_with_jemalloc(&library),
    )?;
    compile("forker.c", "torture/forker", &host_link_args(&library))?;
    compile("beginner.c", "torture/beginner", &THREADS)?;
    compile("accuracy.c", "torture/accuracy", &host_link_args(&library))?;
    compile("churn.c", "torture/churn", &host_link_args(&library))?;
    for name in ["waits", "weather", "computes"] {
        let (source, target) = (format!("attach/{name}.c"), format!("torture/{name}"));
        compile(&source, &target, &THREADS)?;
    }
    let tcmalloc = ["-l:libtcmalloc_minimal.a", "-lstdc++", "-lm"];
    let linked = [&tcmalloc[..], &THREADS].concat();
    compile("attach/weather.c", "torture/weather_linked", &linked)?;
    compile("guest.c", "torture/guest", &[])?;
    compile("fleet/idle.c", "torture/idle", &[])?;
    compile("hostile/witness.c", "torture/witness", &[])?;
    compile("hostile/attacker.c", "torture/attacker", &["-ldl"])?;
    for (name, options) in crate::zoo::LINKED {
        compile("zoo/odd.c", &format!("torture/{name}"), options)?;
    }
    let planted = "../../../outside/memprof-leaks/tests/processes/planted.c";
    compile(planted, "torture/planted", &THREADS)?;
    for kib in TLS_SIZES {
        let define = format!("-DTLS_KIB={kib}");
        let target = |name: String| format!("torture/{name}");
        compile("guest.c", &target(tls_program_name(kib)), &[&define])?;
        let options = [&host_link_args(&library)[..], &[&define]].concat();
        compile("stress_host.c", &target(tls_host_name(kib)), &options)?;
    }
    compile("unwind/hazards.c", "torture/hazards", &THREADS)?;
    let without = [&THREADS[..], &["-Wl,--no-eh-frame-hdr"]].concat();
    compile("unwind/hazards.c", "torture/hazards_without_hdr", &without)?;
    let library = ["-shared", "-fPIC"];
    let named = [&library[..], &["-Wl,--build-id"]].concat();
    compile("hostile/library.c", "torture/attacker_library.so", &named)?;
    let small = [&library[..], &["-DFRAME=64"]].concat();
    compile("unwind/library.c", "torture/library_a.so", &small)?;
    let large = [&library[..], &["-DFRAME=96"]].concat();
    compile("unwind/library.c", "torture/library_b.so", &large)
}

const THREADS: [&str; 2] = ["-lpthread", "-ldl"];

/// Builds `torture/stress_host`, a host whose arguments set the number of threads of each kind.
///
/// # Errors
/// The compiler fails.
pub fn build_stress_host() -> Result<()> {
    let library = host_library_path()?;
    compile(
        "stress_host.c",
        "torture/stress_host",
        &host_link_args(&library),
    )
}

/// Name of the program with this much thread-local data.
pub(crate) fn tls_program_name(kib: u32) -> String {
    format!("guest_tls_{kib}")
}

/// Name of the host with this much thread-local data.
pub(crate) fn tls_host_name(kib: u32) -> String {
    format!("stress_host_tls_{kib}")
}

/// Compiles `source`, a path in `dev/torture/src`, with these options of the compiler, to the file `target` of
/// `target/dist`.
fn compile(source: &str, target: &str, options: &[&str]) -> Result<()> {
    dist::compile("cc", &format!("dev/torture/src/{source}"), target, options)
}
