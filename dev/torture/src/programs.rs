//! The programs that are tortured, in `target/dist/torture`; after [`dist::build`].

use anyhow::Result;
use xtask::dist::{
    self, Profile, build_package, built_dir, dist, dynamic, host_library, install, with_jemalloc,
};

/// KiB of thread-local variables in the programs that are built for the suite `tls`.
pub(crate) const TLS_SIZES: [u32; 6] = [64, 220, 232, 256, 1024, 4096];

/// All of them.
pub(crate) fn build() -> Result<()> {
    build_stress_host()?;
    let library = host_library()?;
    let place = "torture/stress_host_static";
    compile("stress_host.c", place, &with_jemalloc(&library))?;
    compile("forker.c", "torture/forker", &dynamic(&library))?;
    compile("beginner.c", "torture/beginner", &THREADS)?;
    compile("accuracy.c", "torture/accuracy", &dynamic(&library))?;
    compile("churn.c", "torture/churn", &dynamic(&library))?;
    for name in ["waits", "weather", "computes"] {
        let (source, place) = (format!("attach/{name}.c"), format!("torture/{name}"));
        compile(&source, &place, &THREADS)?;
    }
    let tcmalloc = ["-l:libtcmalloc_minimal.a", "-lstdc++", "-lm"];
    let linked = [&tcmalloc[..], &THREADS].concat();
    compile("attach/weather.c", "torture/weather_linked", &linked)?;
    compile("guest.c", "torture/guest", &[])?;
    compile("hostile/witness.c", "torture/witness", &[])?;
    compile("hostile/attacker.c", "torture/attacker", &["-ldl"])?;
    for (name, options) in crate::zoo::LINKED {
        compile("zoo/odd.c", &format!("torture/{name}"), options)?;
    }
    let planted = "../../../outside/memprof-leaks/tests/processes/planted.c";
    compile(planted, "torture/planted", &THREADS)?;
    for kib in TLS_SIZES {
        let define = format!("-DTLS_KIB={kib}");
        let place = |name: String| format!("torture/{name}");
        compile("guest.c", &place(tls_guest(kib)), &[&define])?;
        let options = [&dynamic(&library)[..], &[&define]].concat();
        compile("stress_host.c", &place(tls_host(kib)), &options)?;
    }
    build_probe(Profile::Dev)?;
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

/// `torture/stress_host`: a host with as many threads of each kind as its arguments say.
///
/// # Errors
/// The compiler fails.
pub fn build_stress_host() -> Result<()> {
    let library = host_library()?;
    compile("stress_host.c", "torture/stress_host", &dynamic(&library))
}

/// `torture/unwind_probe.so`, of [`crate::probe`].
///
/// # Errors
/// The compiler fails.
pub fn build_probe(profile: Profile) -> Result<()> {
    build_package("memprof-unwind", profile)?;
    build_package("unwind-probe", profile)?;
    let probe = built_dir(profile).join("libunwind_probe.so");
    install(&probe, &dist().join("torture/unwind_probe.so"))
}

/// The file of `target/dist/torture`.
pub(crate) fn tls_guest(kib: u32) -> String {
    format!("guest_tls_{kib}")
}

/// The file of `target/dist/torture`.
pub(crate) fn tls_host(kib: u32) -> String {
    format!("stress_host_tls_{kib}")
}

fn compile(source: &str, place: &str, options: &[&str]) -> Result<()> {
    dist::compile("cc", &format!("dev/torture/src/{source}"), place, options)
}
