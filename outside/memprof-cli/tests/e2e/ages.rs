//! How old memory is, from one dump.

use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::dist::{source, tool_text};
use crate::host::{Host, Setup, TEST_TIMEOUT};
use crate::memprof::memprof;

/// The ages of the leak, young to old, once it spans that many.
fn ages_of_leak(host: &Host, spans: usize) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let dump = host.dump_of(1_000_000);
        let path = dump["path"].as_str().unwrap();
        let args = ["report", "--format", "json", "--ages", path];
        let report = memprof(&host.socket_dir(), &args).exits(0).json();
        let functions = report["functions"].as_array().unwrap();
        let is_leak = |row: &&Value| row["name"].as_str().unwrap().ends_with("grow_cache");
        let leak = functions.iter().find(is_leak);
        let ages = leak.map(|row| row["ages"].as_array().unwrap().clone());
        if let Some(ages) = ages.filter(|ages| ages.len() >= spans) {
            let of_ages: i64 = ages.iter().map(|age| age["bytes"].as_i64().unwrap()).sum();
            assert_eq!(of_ages, leak.unwrap()["flat"].as_i64().unwrap(), "{ages:?}");
            return ages;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{report}");
    }
}

#[test]
fn dump_with_ages_shows_the_age_of_a_leak() {
    for host in [Setup::of("rust_host"), Setup::without_profiling("c_host")] {
        let host = host.start();
        let active = host
            .memprof("activate", &["--json", "ages=1s", "sample_interval=16KiB"])
            .exits(0);
        let active = active.json();
        assert_eq!(active["ages_s"], 1, "{active}");
        let ages = ages_of_leak(&host, 7);
        let spans = ages.iter().map(|age| [&age["from_s"], &age["to_s"]]);
        for (number, span) in spans.enumerate() {
            let [from, to] = span.map(|second| second.as_u64().unwrap());
            assert_eq!((from >= number as u64, to - from), (true, 1), "{ages:?}");
        }
        // Of the newest dump alone.
        let leaks = host.memprof("leaks", &["--json"]).exits(0).json();
        let (by, dumps) = (&leaks["by"], leaks["dumps"].as_array().unwrap());
        assert_eq!((by.as_str(), dumps.len()), (Some("ages"), 1), "{leaks}");
        let largest = leaks["stacks"][0]["stack"].to_string();
        assert!(largest.contains("grow_cache"), "{leaks}");
        let text = host.memprof("leaks", &[]).exits(0).stdout;
        assert!(text.contains("with memory of every age"), "{text}");
        let off = host.memprof("activate", &["--json"]).exits(0).json();
        assert_eq!(off["ages_s"], Value::Null, "{off}");
    }
}

/// The mean age in seconds of what a function holds.
fn mean_age(report: &Value, function: &str) -> f64 {
    let mut functions = report["functions"].as_array().unwrap().iter();
    let row = functions.find(|row| row["name"] == function);
    let row = row.unwrap_or_else(|| panic!("no {function}: {report}"));
    let (mut bytes, mut weighed) = (0.0, 0.0);
    for age in row["ages"].as_array().unwrap() {
        let number = |name: &str| age[name].as_f64().unwrap();
        bytes += number("bytes");
        weighed += number("bytes") * (number("from_s") + number("to_s")) / 2.0;
    }
    weighed / bytes
}

#[test]
fn dump_with_ages_separates_start_cache_and_leak() {
    // A thread of jemalloc draws the distance to its first sample when it starts, at the interval of then.
    let jemalloc = ["--allocator", "jemalloc", "--lg-sample", "12"];
    for allocator in [&[][..], &jemalloc] {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("shapes");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-o"]).arg(&program);
        tool_text(
            "gcc",
            cc.arg(source("outside/memprof-cli/tests/fixtures/shapes.c")),
        );
        let mut host = Host::run(&program, allocator, place);
        host.memprof("activate", &["ages=1s", "sample_interval=4KiB"])
            .exits(0);
        host.type_line("work");
        host.wait_for_log("done second 10");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let path = dump["path"].as_str().unwrap();
        let args = ["report", "--format", "json", "--ages", path];
        let report = memprof(&host.socket_dir(), &args).exits(0).json();
        let shapes = ["load_tables", "fill_cache", "leak"].map(|name| mean_age(&report, name));
        let [start, cache, leak] = shapes;
        // All at once at the start; halved every 1.4 s; as much of every second. On a busy machine
        // the dump comes later than the tenth second, and the program catches up on what it owes, so
        // that its leak seems younger.
        assert!(start > 8.5, "{shapes:?}");
        assert!(cache / start < 0.3, "{shapes:?}");
        assert!((0.3..0.7).contains(&(leak / start)), "{shapes:?}");
        let leaks = host.memprof("leaks", &["--json"]).exits(0).json();
        let stacks = leaks["stacks"].as_array().unwrap();
        let named: Vec<_> = stacks
            .iter()
            .map(|stack| stack["stack"].to_string())
            .collect();
        assert!(named[0].contains("\"leak\""), "{leaks}");
        assert!(
            !named.iter().any(|stack| stack.contains("load_tables")),
            "{leaks}"
        );
    }
}

#[test]
fn unknown_ages_are_refused() {
    let host = Setup::of("c_host").start();
    let check = |args: &[&str], code, error: &str| {
        let refused = host.memprof("activate", args).exits(code);
        assert!(refused.stderr.contains(error), "{}", refused.stderr);
    };
    check(
        &["ages=1"],
        2,
        "ages=\"1\" is not a length of a bucket; valid: off, or whole seconds",
    );
    let walks = "neither is in use here: as chosen; activate sampler=memprof";
    check(&["ages=1m", "unwinder=allocator"], 4, walks);
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive", "{status}");
}
