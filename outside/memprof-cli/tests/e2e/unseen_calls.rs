//! Calls of `malloc` and `free` by addresses that a program keeps: seen, or reported.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::dist::{dist, source, tool_text};
use crate::host::Host;
use crate::memprof::memprof;

/// `by_address.c` in one of its ways, under `memprof run`.
fn by_address(place: &TempDir, way: &str) -> Host {
    by_address_with(place, way, &[], "")
}

/// Like [`by_address`], but linked with `flags` and with a library preloaded, unless that is empty.
fn by_address_with(place: &TempDir, way: &str, flags: &[&str], preload: &str) -> Host {
    let program = place.path().join("by_address");
    let mut cc = Command::new("cc");
    cc.arg("-O1").arg("-o").arg(&program);
    cc.arg(source(
        "outside/memprof-cli/tests/fixtures/allocators/by_address.c",
    ));
    tool_text("gcc", cc.args(flags).args(["-lpthread", "-ldl"]));
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").arg("--").arg(&program).arg(way);
    command.env("MEMPROF_LOG", "info").stdin(Stdio::piped());
    if !preload.is_empty() {
        command.env("LD_PRELOAD", preload);
    }
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("control socket ");
    host
}

/// Bytes of the blocks that the program holds at a time.
const IN_USE: f64 = 500.0 * 30_500.0;

#[test]
fn calls_by_stored_addresses_are_seen_or_reported() {
    for way in ["plain", "data", "both", "copied"] {
        let place = tempfile::tempdir().unwrap();
        let mut host = by_address(&place, way);
        host.memprof("activate", &["sample_interval=16KiB"])
            .exits(0);
        host.type_line("go");
        host.wait_for_log("served go");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let in_use = dump["estimated_inuse_bytes"].as_f64().unwrap();
        let path = dump["path"].as_str().unwrap();
        let report = memprof(place.path(), &["report", path]).exits(0);
        let is_noted = report.stderr.contains("none of its rows proves a leak");
        if way == "copied" {
            let bytes = dump["unseen_frees"]["bytes"].as_f64().unwrap();
            assert!(bytes > 2.0 * IN_USE, "{dump}");
            assert!((in_use - bytes) / IN_USE < 1.5, "{dump}");
            assert!(
                dump["text"].as_str().unwrap().contains("proves a leak"),
                "{dump}"
            );
            assert!(is_noted, "{report:?}");
        } else {
            assert_eq!(dump["unseen_frees"], Value::Null, "{way}: {dump}");
            assert!((in_use / IN_USE - 1.0).abs() < 0.2, "{way}: {dump}");
            assert!(!is_noted, "{way}: {report:?}");
        }
    }
}

#[test]
fn malloc_beside_unused_jemalloc_is_sampled() {
    let linked = ["-Wl,--no-as-needed", "-l:libjemalloc.so.2"];
    for preload in ["libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let place = tempfile::tempdir().unwrap();
        let mut host = by_address_with(&place, "plain", &linked, preload);
        let active = host.memprof("activate", &["sample_interval=16KiB", "--json"]);
        let text = active.exits(0).json()["text"].as_str().unwrap().to_owned();
        assert!(!text.contains("jemalloc"), "{text}");
        host.type_line("go");
        host.wait_for_log("served go");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let in_use = dump["estimated_inuse_bytes"].as_f64().unwrap();
        assert!((in_use / IN_USE - 1.0).abs() < 0.2, "{preload}: {dump}");
        assert_eq!(dump["unseen_frees"], Value::Null, "{preload}: {dump}");
        host.memprof("deactivate", &[]).exits(0);
        let recorded = host.memprof("record", &["--for=10ms", "sampler=memprof"]);
        assert!(
            recorded.exits(0).stderr.contains("memprof samples"),
            "{preload}"
        );
    }
}

/// Compiles the file of that path in the project to a shared library.
fn compile_library(place: &TempDir, code: &str) -> PathBuf {
    let library = place.path().join("library.so");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library);
    cc.arg(source(code));
    tool_text("gcc", &mut cc);
    library
}

#[test]
fn library_that_allocates_as_soon_as_it_is_loaded_is_sampled() {
    const FILLED: f64 = 16384.0 * 1000.0;
    let code = "outside/memprof-cli/tests/fixtures/allocators/fills_at_once.c";
    let place = tempfile::tempdir().unwrap();
    let library = compile_library(&place, code);
    let mut host = by_address(&place, library.to_str().unwrap());
    host.memprof("activate", &["sample_interval=16KiB"])
        .exits(0);
    host.type_line("go");
    host.wait_for_log("served go");
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let in_use = dump["estimated_inuse_bytes"].as_f64().unwrap();
    assert!((in_use / FILLED - 1.0).abs() < 0.2, "{dump}");
    assert_eq!(dump["unseen_allocation_bytes"], Value::Null, "{dump}");
    assert_eq!(dump["early_ends"], Value::Array(Vec::new()), "{dump}");
}

/// Seen in each way: a copy of `free` in the program's memory, the loader's own calls for thread-local storage, and
/// constructors of a library.
#[test]
fn jumps_at_entries_see_calls_that_slots_miss() {
    const SEEN: f64 = 16384.0 * 1000.0;
    let place = tempfile::tempdir().unwrap();
    let library = compile_library(&place, "dev/bench/truth/inputs/sampling/constructs.c");
    for (way, expected) in [("copied", IN_USE), (library.to_str().unwrap(), 2.0 * SEEN)] {
        let place = tempfile::tempdir().unwrap();
        let mut host = by_address(&place, way);
        let pid = host.pid().to_string();
        let attached = memprof(&host.socket_dir(), &["attach", &pid, "--entries", "--json"]);
        let attached = attached.exits(0).json();
        assert_eq!(attached["entries"]["library"], "libc.so.6", "{attached}");
        host.memprof("activate", &["sample_interval=16KiB"])
            .exits(0);
        host.type_line("go");
        host.wait_for_log("served go");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let in_use = dump["estimated_inuse_bytes"].as_f64().unwrap();
        assert!((in_use / expected - 1.0).abs() < 0.2, "{way}: {dump}");
        for note in ["unseen_frees", "unseen_allocation_bytes"] {
            assert_eq!(dump[note], Value::Null, "{way}: {dump}");
        }
        memprof(&host.socket_dir(), &["detach", &pid]).exits(0);
    }
}
