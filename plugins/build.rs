//! Links a plugin so that it stays loaded, shows nothing but its entry points, and needs no library but libc.

use std::path::Path;
use std::process::Command;

fn main() {
    // dlclose of a Rust library whose threads may still end crashes: never unload.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A host that loads it globally must not mix its symbols with ours.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    link_unwinder();
    // From the package that it builds: a name that is not there would run it on every call.
    println!("cargo::rerun-if-changed=../build.rs");
}

/// Links gcc's unwinder into the plugin: a root with nothing but libc has no `libgcc_s.so.1`. Rust's own
/// `-lgcc_s` comes later, finds nothing left to define, and is dropped (`--as-needed`).
///
/// Another linker than gcc brings an unwinder of its own; zig's is static already.
fn link_unwinder() {
    if std::env::var_os("RUSTC_LINKER").is_some() {
        return;
    }
    let output = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    let output = output.expect("cc, which links the plugin, says where its libraries are");
    let library = String::from_utf8(output.stdout).expect("a path in UTF-8");
    // Where cc has no such file it prints the bare name, and the linker names it.
    if let Some(directory) = Path::new(library.trim()).parent() {
        println!("cargo::rustc-link-search=native={}", directory.display());
    }
    println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
}
