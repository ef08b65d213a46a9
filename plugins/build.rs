//! Links a plugin so that it stays loaded and shows nothing but its entry points.

fn main() {
    // dlclose of a Rust library whose threads may still end crashes: never unload.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A host that loads it globally must not mix its symbols with ours.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // From the package that it builds: a name that is not there would run it on every call.
    println!("cargo::rerun-if-changed=../build.rs");
}
