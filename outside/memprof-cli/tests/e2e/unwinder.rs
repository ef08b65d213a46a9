//! Who walks the stacks of samples.

use std::time::Instant;

use serde_json::Value;

use crate::host::{Host, Setup, TEST_TIMEOUT};

/// The walker of the only jemalloc that can profile, once it took that many samples.
fn walker_after(host: &Host, samples: u64) -> Value {
    let begun = Instant::now();
    loop {
        let status = host.memprof("status", &["--json"]).exits(0).json();
        let walkers = status["unwinder"]["walkers"].as_array().unwrap();
        assert_eq!(walkers.len(), 1, "{status}");
        if walkers[0]["samples"].as_u64().unwrap() >= samples {
            return walkers[0].clone();
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{status}");
        testkit::pause();
    }
}

#[test]
fn memprof_walk_agrees_with_the_allocator_s() {
    for program in ["c_host", "c_host_static", "cpp_host", "rust_host"] {
        let host = Setup::of(program)
            .config("unwinder_checks = 1000000")
            .start();
        let active = host.memprof("activate", &[]).exits(0).stdout;
        assert!(active.contains("stacks walked by memprof"), "{active}");
        let walker = walker_after(&host, 500);
        assert_eq!(walker["walker"], "memprof", "{program}: {walker}");
        assert_eq!(walker["reason"], Value::Null, "{program}: {walker}");
        assert_eq!(walker["agreed"], walker["compared"], "{program}: {walker}");
        assert!(walker["compared"].as_u64().unwrap() > 400, "{walker}");
        assert!(walker["fallbacks"].as_u64().unwrap() < 5, "{walker}");
        assert_eq!(walker["cut"], 0, "{program}: {walker}");
        assert_eq!(host.memprof("doctor", &[]).exits(0).stderr, "");
    }
}

#[test]
fn few_later_samples_are_compared() {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    let walker = walker_after(&host, 3000);
    let compared = walker["compared"].as_u64().unwrap();
    assert!((64..200).contains(&compared), "{walker}");
}

#[test]
fn deactivate_restores_the_allocator_s_walk() {
    let host = Setup::of("c_host").start();
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["unwinder"]["walkers"], Value::Array(Vec::new()));
    assert!(!host.threads().contains(&"memprof-unwind".to_owned()));
    host.memprof("activate", &[]).exits(0);
    walker_after(&host, 100);
    assert!(host.threads().contains(&"memprof-unwind".to_owned()));
    host.memprof("deactivate", &[]).exits(0);
    assert_eq!(walker_after(&host, 100)["walker"], "allocator");
    let begun = Instant::now();
    while host.threads().contains(&"memprof-unwind".to_owned()) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "its thread goes on");
    }
}

#[test]
fn allocator_s_walk_can_be_chosen() {
    let chosen = |walker: &Value| {
        assert_eq!(walker["walker"], "allocator", "{walker}");
        assert_eq!(walker["reason"], "as chosen", "{walker}");
        assert_eq!(walker["samples"], 0, "{walker}");
    };
    let host = Setup::of("c_host").start();
    let active = host
        .memprof("activate", &["--json", "unwinder=allocator"])
        .exits(0)
        .json();
    assert_eq!(active["unwinder"]["setting"], "allocator");
    chosen(&active["unwinder"]["walkers"][0]);
    assert!(!host.threads().contains(&"memprof-unwind".to_owned()));
    host.memprof("activate", &["unwinder=memprof"]).exits(0);
    assert_eq!(walker_after(&host, 10)["walker"], "memprof");

    let host = Setup::of("c_host")
        .config("unwinder = \"allocator\"\nactivate_at_start = true")
        .start();
    chosen(&walker_after(&host, 0));
    let wrong = host.memprof("activate", &["unwinder=fast"]).exits(2);
    assert!(wrong.stderr.contains("valid: auto, memprof, allocator"));
}
