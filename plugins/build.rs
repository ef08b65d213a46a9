//! Links a plugin so that it stays loaded, exports only its entry points, and needs no library but libc.

use std::path::Path;
use std::process::Command;

fn main() {
    // dlclose(3) of a Rust library whose threads may still end crashes, so it is never unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // If a host loads the plugin with RTLD_GLOBAL, its symbols must not replace the plugin's.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    link_unwinder();
    // The path is relative to the package being built, one folder below this file. If cargo did not find the file, it
    // would run this script at each build.
    println!("cargo::rerun-if-changed=../build.rs");
}

/// Links gcc's unwinder statically into the plugin: a root directory with nothing but libc has no `libgcc_s.so.1`.
/// Rust's own `-lgcc_s` comes later, has nothing left to define, and is dropped (`--as-needed`).
///
/// Does nothing if `RUSTC_LINKER` selects another linker. Other linkers provide their own unwinder; zig's is static
/// already.
fn link_unwinder() {
    if std::env::var_os("RUSTC_LINKER").is_some() {
        return;
    }
    let output = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    let output = output.expect("cc, which links the plugin, says where its libraries are");
    let library = String::from_utf8(output.stdout).expect("a path in UTF-8");
    // If cc does not have the file, it prints the bare name, and the linker reports it.
    if let Some(directory) = Path::new(library.trim()).parent() {
        println!("cargo::rustc-link-search=native={}", directory.display());
    }
    println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
}
