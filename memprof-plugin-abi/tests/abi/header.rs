//! `include/memprof.h` equals the generated header, and compiles with every compiler that a plugin may use.

use std::path::{Path, PathBuf};
use std::process::Command;

fn crate_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn committed_header_equals_generated_one() {
    let mut config = cbindgen::Config::from_file(crate_file("cbindgen.toml")).unwrap();
    let text = |name: &str| std::fs::read_to_string(crate_file(name)).unwrap();
    let contract: String = text("CONTRACT.md")
        .lines()
        .map(|line| format!(" * {line}").trim_end().to_owned() + "\n")
        .collect();
    let insert = |part: &mut Option<String>, mark: &str, text: &str| {
        *part = part.take().map(|part| part.replace(mark, text));
    };
    insert(&mut config.header, "@CONTRACT@", &contract);
    insert(&mut config.trailer, "@HELPERS@", &text("src/helpers.h"));
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(crate_file("src/raw.rs"))
        .generate()
        .unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let committed = crate_file("include/memprof.h");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&committed, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(committed).unwrap();
    assert!(
        committed.as_bytes() == generated,
        "include/memprof.h is out of date: run BLESS=1 cargo test -p memprof-plugin-abi"
    );
}

/// Assertions of the sizes and offsets that `raw.rs` also asserts, so that both sides agree.
const PROBE: &str = r#"
#include <memprof.h>
#ifdef __cplusplus
#define CHECK(what) static_assert(what, #what)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define CHECK(what) _Static_assert(what, #what)
#else
#define CHECK(what) extern int check_[(what) ? 1 : -1]
#endif
CHECK(sizeof(memprof_str_t) == 16);
CHECK(sizeof(memprof_message_t) == 64);
CHECK(sizeof(memprof_reply_t) == 40);
CHECK(sizeof(memprof_host_t) == 80);
CHECK(sizeof(memprof_plugin_entry_t) == 112);
CHECK(sizeof(memprof_jemalloc_t) == 40);
CHECK(sizeof(memprof_reply_fd_t) == 16);
CHECK(sizeof(memprof_threads_t) == 16);
CHECK(sizeof(memprof_labels_t) == 24);
CHECK(offsetof(memprof_host_t, ctx) == 16);
CHECK(offsetof(memprof_host_t, get_extension) == 72);
CHECK(offsetof(memprof_plugin_entry_t, abi_version) == 8);
CHECK(offsetof(memprof_plugin_entry_t, id) == 16);
CHECK(offsetof(memprof_plugin_entry_t, messages) == 64);
CHECK(offsetof(memprof_plugin_entry_t, create) == 80);
CHECK(offsetof(memprof_plugin_entry_t, get_extension) == 104);
static const void *const *context(void) { return 0; }
static int32_t key(memprof_str_t name) { return name.len ? 0 : MEMPROF_INVALID_ARGUMENT; }
MEMPROF_LABELS(context, key);
static const memprof_message_t hello = MEMPROF_MESSAGE("hello", "", "");
MEMPROF_PLUGIN("probe", "1", 0, 0, 0, &hello);
"#;

#[test]
fn compiles_without_warnings_and_exports_the_entry() {
    let check = |compiler: &str, standard: &str, extension: &str| {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join(format!("probe.{extension}"));
        let library = directory.path().join("probe.so");
        std::fs::write(&source, PROBE).unwrap();
        let compiled = Command::new(compiler)
            .arg(format!("-std={standard}"))
            .args([
                "-Wall",
                "-Wextra",
                "-pedantic",
                "-Werror",
                "-fvisibility=hidden",
            ])
            .args(["-shared", "-fPIC", "-I"])
            .arg(crate_file("include"))
            .arg("-o")
            .arg(&library)
            .arg(&source)
            .output()
            .unwrap();
        let notes = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{standard}: {notes}");
        let symbols = Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library)
            .output();
        let symbols = String::from_utf8(symbols.unwrap().stdout).unwrap();
        assert!(
            symbols.contains(" R memprof_plugin_entry")
                || symbols.contains(" D memprof_plugin_entry"),
            "{standard}: {symbols}"
        );
    };
    check("cc", "c99", "c");
    check("cc", "c11", "c");
    check("c++", "c++11", "cc");
    check("c++", "c++17", "cc");
}

/// Compares the header's ABI, as libabigail describes it, with the snapshot. A difference needs a new major version.
#[test]
fn structs_equal_committed_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("probe.so");
    std::fs::write(directory.path().join("probe.c"), PROBE).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-shared", "-fPIC", "-I"])
        .arg(crate_file("include"));
    // A path that is the same each time: it is in the debug information, and so in the snapshot.
    cc.args(["-o", "probe.so", "probe.c"]);
    run(cc.current_dir(&directory), "gcc");
    let snapshot = crate_file("tests/abi/memprof.abi");
    if std::env::var_os("BLESS").is_some() {
        let mut abidw = Command::new("abidw");
        abidw.args([
            "--no-show-locs",
            "--no-comp-dir-path",
            "--no-corpus-path",
            "--out-file",
        ]);
        run(abidw.arg(&snapshot).arg(&library), "abigail-tools");
    }
    run(
        Command::new("abidiff").arg(&snapshot).arg(&library),
        "abigail-tools",
    );
}

/// Runs a tool of a Debian `package`, which must succeed.
fn run(command: &mut Command, package: &str) {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; run `cargo xtask test`, or apt-get install {package}")
    });
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
}
