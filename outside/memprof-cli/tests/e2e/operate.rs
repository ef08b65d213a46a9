//! What an operator does with a live process besides taking dumps.

use std::time::Instant;

use serde_json::Value;

use crate::dist::{dist, preloadable, source, tool_text};
use crate::host::{Setup, TEST_TIMEOUT};

fn rows(ledger: &Value) -> Vec<(String, u64)> {
    let rows = ledger["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row["name"].as_str().unwrap().to_owned(),
            row["bytes"].as_u64().unwrap(),
        )
    })
    .collect()
}

#[test]
fn ledger_needs_no_profiler() {
    let host = Setup::without_profiling("c_host").start();
    let ledger = host.memprof("ledger", &["--json"]).exits(0).json();
    assert_eq!(ledger["allocators"][0]["kind"], "glibc", "{ledger}");
    let rows = rows(&ledger);
    assert!(rows[0].1 > 0, "{ledger}");
    let sum: u64 = rows.iter().map(|row| row.1).sum();
    assert_eq!(sum, ledger["rss_bytes"].as_u64().unwrap());
    let text = host.memprof("ledger", &[]).exits(0).stdout;
    assert!(text.contains("\nglibc 2."), "{text}");
}

#[test]
fn lease_expires() {
    let host = Setup::of("c_host").start();
    let active = host
        .memprof("activate", &["--json", "for=1s"])
        .exits(0)
        .json();
    assert_eq!(active["profiling"], "active");
    assert!(active["active_until"].is_string(), "{active}");
    host.wait_for_log("profiling is inactive: its time is over");
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive");
    assert_eq!(status["active_until"], Value::Null);
}

#[test]
fn unlimited_activation_outlives_a_lease() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &["for=1h"]).exits(0);
    let active = host.memprof("activate", &["--json"]).exits(0).json();
    assert_eq!(active["active_until"], Value::Null);
    host.memprof("activate", &["for=1h"]).exits(0);
    host.memprof("deactivate", &[]).exits(0);
    let active = host.memprof("activate", &["--json"]).exits(0).json();
    assert_eq!(active["active_until"], Value::Null);
}

#[test]
fn host_exits_during_a_lease() {
    let mut host = Setup::of("c_host").start();
    host.memprof("activate", &["for=1h"]).exits(0);
    assert!(host.terminate().success());
}

#[test]
fn reset_drops_the_samples_and_sets_the_interval() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(3_000_000);
    let reset = host
        .memprof("reset", &["--json", "lg_sample=20"])
        .exits(0)
        .json();
    assert_eq!(reset["sample_interval"], 1 << 20);
    assert_eq!(reset["warnings"][0], "all samples so far were dropped");
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    assert!(
        dump["estimated_inuse_bytes"].as_u64().unwrap() < 3_000_000,
        "{dump}"
    );
    assert_eq!(dump["sample_interval"], 1 << 20);
}

#[test]
fn purge_reports_released_memory() {
    let host = Setup::of("c_host").start();
    let purged = host.memprof("purge", &["--json"]).exits(0).json();
    let field = |name: &str| purged[name].as_u64().unwrap();
    assert!(field("anonymous_before_bytes") > 0, "{purged}");
    let released = field("anonymous_before_bytes").saturating_sub(field("anonymous_after_bytes"));
    assert_eq!(released, field("released_bytes"));
}

#[test]
fn doctor_reports_findings_and_sets_the_exit_code() {
    let check = |setup: Setup<'_>, code: i32, kinds: &[&str], text: &str| {
        let host = setup.start();
        let found = host.memprof("doctor", &["--json"]).exits(code).json();
        let found_kinds: Vec<_> = found["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f["kind"].as_str().unwrap())
            .collect();
        assert_eq!(found_kinds, kinds, "{found}");
        assert_eq!(found["healthy"], kinds.is_empty());
        let shown = host.memprof("doctor", &[]).exits(code).stdout;
        assert!(shown.contains(text), "{shown}");
    };
    check(
        Setup::of("c_host"),
        0,
        &[],
        "healthy: nothing prevents a heap profile",
    );
    let off = Setup::that_cannot_profile("rust_host").env("MALLOC_CONF", "prof:true");
    check(
        off,
        4,
        &["wrong_variable"],
        "restart it with _RJEM_MALLOC_CONF=prof:true",
    );
    let none = Setup::without_profiling("c_host");
    let in_place = "memprof's own sampler serves it";
    check(none, 0, &["sampled_by_memprof"], in_place);
    let prefix = "prof:true,prof_active:false,prof_prefix:/tmp/x:lg_prof_sample:12,prof_final:true";
    let swallowed = Setup::of("c_host").env("MALLOC_CONF", prefix);
    let kinds = ["swallowed_option", "shared_dumps", "coarse_interval"];
    check(swallowed, 0, &kinds, "it swallowed \"lg_prof_sample:12\"");
}

#[test]
fn doctor_recognizes_a_variable_ignored_by_jemalloc() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("conf_host");
    let link = |export: &[&str]| {
        let mut cc = std::process::Command::new("cc");
        cc.arg("-I").arg(dist("include")).arg("-o").arg(&program);
        cc.arg(source("hosts-examples/c/c_host.c"));
        cc.arg(source("outside/memprof-cli/tests/fixtures/malloc_conf.c"));
        cc.arg(dist("lib/libmemprof_host.a"));
        tool_text("gcc", cc.args(["-lpthread", "-ldl", "-lm"]).args(export));
        let host = Setup::without_profiling("c_host").env("LD_PRELOAD", "libjemalloc.so.2");
        host.program_at(&program).start()
    };
    let hidden = link(&[]).memprof("doctor", &[]).exits(0).stdout;
    assert!(
        hidden.contains("a variable malloc_conf, but does not export it"),
        "{hidden}"
    );
    assert!(
        hidden.contains("-Wl,--export-dynamic-symbol=malloc_conf"),
        "{hidden}"
    );
    let mended = link(&["-Wl,--export-dynamic-symbol=malloc_conf"]);
    let mended = mended.memprof("doctor", &[]).exits(0).stdout;
    assert!(!mended.contains("malloc_conf"), "{mended}");
}

#[test]
fn doctor_recognizes_a_replaced_unwinder() {
    let place = tempfile::tempdir().unwrap();
    let library = preloadable("interposer.c", place.path());
    let preload = format!("libjemalloc.so.2 {}", library.display());
    let host = Setup::of("c_host").env("LD_PRELOAD", &preload).start();
    let found = host.memprof("doctor", &[]).exits(0).stdout;
    let expected = format!("{} replaces the C library's", library.display());
    assert!(found.contains(&expected), "{found}");
}

#[test]
fn doctor_names_options_ignored_by_jemalloc() {
    let host = Setup::of("c_host")
        .env("MALLOC_CONF", "prof:true,lg_sample:12, prof_active:false")
        .env("_RJEM_MALLOC_CONF", "tcache:false")
        .start();
    let found = host.memprof("doctor", &[]).exits(0).stdout;
    for expected in [
        "jemalloc 5.3.0 ignores in MALLOC_CONF \"lg_sample:12\": jemalloc has no option lg_sample; it \
         may be lg_prof_sample that was meant",
        "ignores in MALLOC_CONF \" prof_active:false\" and all behind it: no blank may stand before",
        "_RJEM_MALLOC_CONF is set, but no jemalloc of this process reads it",
    ] {
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn doctor_recognizes_a_stripped_program() {
    let place = tempfile::tempdir().unwrap();
    let stripped = place.path().join("stripped_host");
    let mut strip = std::process::Command::new("strip");
    strip
        .arg("-o")
        .arg(&stripped)
        .arg(dist("examples/c_host_static"));
    tool_text("binutils", &mut strip);
    let host = Setup::of("c_host_static").program_at(&stripped).start();
    let run = host.memprof("doctor", &[]).exits(4);
    assert!(
        run.stdout
            .contains("contains a jemalloc that memprof cannot control"),
        "{run:?}"
    );
}

#[test]
fn record_shows_the_leak_and_restores_the_host() {
    let host = Setup::of("c_host").start();
    let file = host.place().join("x.heap");
    let file_name = file.to_str().unwrap();
    let run = host
        .memprof("record", &["--for", "1s", "-o", file_name])
        .exits(0);
    assert!(run.stdout.contains("grow_cache"), "{run:?}");
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .starts_with("heap_v2/")
    );
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive");

    host.memprof("activate", &["for=1h"]).exits(0);
    host.memprof("record", &["--for", "100ms"]).exits(0);
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "active");
    assert!(status["active_until"].is_string(), "{status}");

    let off = Setup::that_cannot_profile("rust_host").start();
    off.memprof("record", &["--for", "1s"]).exits(4);
}

#[test]
fn leaks_names_the_growing_stack() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    host.memprof("leaks", &[]).exits(5);
    let live = || rows(&host.memprof("ledger", &["--json"]).exits(0).json())[0].1;
    for _ in 0..3 {
        let (before, begun) = (live(), Instant::now());
        while live() < before + 500_000 {
            assert!(begun.elapsed() < TEST_TIMEOUT, "the host does not grow");
        }
        host.memprof("dump", &[]).exits(0);
    }
    let leaks = host
        .memprof("leaks", &["--json", "--last", "3"])
        .exits(0)
        .json();
    assert_eq!(leaks["dumps"].as_array().unwrap().len(), 3);
    let largest = &leaks["stacks"][0];
    let stack = largest["stack"].to_string();
    assert!(stack.contains("grow_cache"), "{leaks}");
    assert!(largest["growth_bytes"].as_i64().unwrap() > 0);
    let text = host.memprof("leaks", &["--last", "3"]).exits(0).stdout;
    assert!(text.contains("grew in each of the last 3 dumps"), "{text}");
    assert!(text.contains("\n    grow_cache\n"), "{text}");
    host.memprof("leaks", &["--last", "2"]).exits(2);
}

#[test]
fn first_dump_outlasts_the_quota() {
    let host = Setup::of("c_host")
        .config("[plugin.config.keep]\ncount = 3\nage = \"7d\"\nkeep_first = true")
        .start();
    let ids: Vec<_> = (0..5)
        .map(|_| host.memprof("dump", &["--json"]).exits(0).json()["id"].clone())
        .collect();
    let list = host.memprof("list", &["--json"]).exits(0).json();
    let kept = list["dumps"].as_array().unwrap().iter();
    let kept: Vec<_> = kept.map(|dump| &dump["id"]).collect();
    assert_eq!(kept, [&ids[4], &ids[3], &ids[0]]);
}

#[test]
fn stats_come_in_the_requested_form() {
    for program in ["c_host", "rust_host"] {
        let host = Setup::of(program).start();
        let report = |args: &[&str]| {
            let stats = host.memprof("stats", args).exits(0).json();
            stats["allocators"][0]["report"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let json: Value = serde_json::from_str(&report(&["--json", "format=json"])).unwrap();
        assert!(json["jemalloc"]["version"].is_string(), "{json}");
        assert!(json["jemalloc"]["stats"]["allocated"].is_u64(), "{json}");
        assert!(report(&["--json"]).contains("Merged arenas stats"));
        assert!(!report(&["--json", "opts=amx"]).contains("Merged arenas stats"));
        let plain = host
            .memprof("stats", &["--json", "format=text"])
            .exits(0)
            .json();
        let plain = plain["text"].as_str().unwrap();
        assert!(plain.starts_with("jemalloc "), "{plain}");
    }
}

#[test]
fn background_threads_are_switched_and_read_back() {
    let host = Setup::of("c_host").start();
    let switch = |args: &[&str]| {
        let args = [&["--json"], args].concat();
        let reply = host.memprof("background_thread", &args).exits(0).json();
        reply["allocators"][0].clone()
    };
    let on = switch(&["state=on", "max=1"]);
    assert_eq!(on["background_thread"], true);
    host.wait_for_thread("jemalloc_bg_thd");
    assert_eq!(on["max_background_threads"], 1);
    assert_eq!(switch(&[])["background_thread"], true);
    // To raise the limit beyond that of the start is refused, and changes nothing.
    let refused = host.memprof("background_thread", &["state=off", "max=9999"]);
    assert!(
        refused
            .exits(4)
            .stderr
            .contains("max=9999 is out of range 1..=")
    );
    let off = switch(&["state=off"]);
    assert_eq!(off["background_thread"], false);
    assert_eq!(off["max_background_threads"], 1);
    let none = Setup::without_profiling("c_host").start();
    none.memprof("background_thread", &["state=on"]).exits(4);
}

#[test]
fn stats_skip_the_log_on_request() {
    let host = Setup::of("rust_host").start();
    let lines = |text: &str| host.log().iter().filter(|line| line.contains(text)).count();
    host.memprof("stats", &["log=off"]).exits(0);
    assert_eq!(lines("retained"), 0);
    host.memprof("stats", &[]).exits(0);
    host.wait_for_log("retained");
}
