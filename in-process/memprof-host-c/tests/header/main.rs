//! `include/memprof_host.h` is generated from the library.

use std::path::{Path, PathBuf};

/// Returns the path of a file in this crate's directory.
fn crate_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn committed_header_equals_generated() {
    let bindings = cbindgen::Builder::new()
        .with_config(cbindgen::Config::from_file(crate_file("cbindgen.toml")).unwrap())
        .with_src(crate_file("src/lib.rs"))
        .generate()
        .unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let committed = crate_file("include/memprof_host.h");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&committed, &generated).unwrap();
    }
    assert!(
        std::fs::read(committed).unwrap() == generated,
        "include/memprof_host.h is out of date: run BLESS=1 cargo test -p memprof-host-c"
    );
}
