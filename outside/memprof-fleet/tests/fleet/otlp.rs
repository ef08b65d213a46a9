//! OpenTelemetry's profiles, as the official messages in Python read them.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::test_dir::{CART, HOUR, Run, START, TestDir};

const PROTO: &str = "opentelemetry-proto==1.45.2";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/otlp.py");
/// Profile of Redis by jemalloc, with 20 functions per stack on average.
const STACKS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../memprof-report/tests/goldens/redis.inuse_space.no_symbols.collapsed"
);
/// Largest ratio of the message's size to the size of the same profile in pprof's format.
const MAX_SIZE_RATIO: f64 = 1.3;

/// Content of the messages for a day's profiles, which are written to a file in each format.
fn read(dir: &TestDir) -> Value {
    let written = ["otlp", "pprof"].map(|format| {
        let file = dir.path(format);
        let args = [
            "fleet",
            "flame",
            "-t",
            "@cart",
            "--at",
            "2026-11-21T23:00:00Z",
            "--for",
            "24h",
            "--format",
            format,
            "--output",
            file.to_str().unwrap(),
        ];
        dir.run(&args).exits(0);
        file
    });
    let mut python = Command::new(testkit::python::install_packages(&[PROTO]).unwrap());
    python.arg(SCRIPT).args(written);
    Run::from_output(python.output().unwrap()).exits(0).json()
}

/// Returns the module in a name `MODULE::FUNCTION`; empty if there is none.
fn module(function: &str) -> &str {
    function.split_once("::").map_or("", |(module, _)| module)
}

#[test]
fn official_messages_have_same_totals() {
    let dir = TestDir::new();
    let text = std::fs::read_to_string(Path::new(STACKS)).unwrap();
    // Addresses are replaced by names, because pprof's format leaves addresses out.
    let text = text.replace("+0x", "::at_");
    let lines = text.lines().map(|line| line.rsplit_once(' ').unwrap());
    let held: Vec<_> = lines
        .map(|(stack, bytes)| {
            let frames = stack
                .split(';')
                .map(|function| (function, module(function)));
            (frames.collect(), bytes.parse().unwrap())
        })
        .collect();
    for hour in 0..2 {
        dir.spool_stacks(CART, START + hour * HOUR, &held);
    }
    dir.drain();
    let message = read(&dir);
    let bytes: i64 = held.iter().map(|(_, bytes)| bytes).sum();
    let totals = json!({ "inuse_space bytes": bytes, "inuse_objects count": held.len() });
    assert_eq!(message["totals"], totals, "{message}");
    assert_eq!(message["services"], json!(["cart"]));
    assert_eq!(message["addresses"], json!([]));
    for packed in 0..2 {
        let size = |format| message["bytes"][format][packed].as_f64().unwrap();
        let ratio = size("otlp") / size("pprof");
        assert!(ratio <= MAX_SIZE_RATIO, "{ratio}: {message}");
    }
}

#[test]
fn unnamed_functions_and_modules_are_not_duplicated() {
    let dir = TestDir::new();
    let held = [
        (vec![("main", "cart"), ("", "")], 100),
        (vec![("main", "cart"), ("", "libshop.so")], 200),
        (vec![("main", "cart"), ("serve", "")], 300),
        (vec![("main", "cart")], 400),
        (vec![], 500),
    ];
    dir.spool_stacks(CART, START, &held);
    dir.drain();
    let message = read(&dir);
    let totals = json!({ "inuse_space bytes": 1500, "inuse_objects count": 5 });
    assert_eq!(message["totals"], totals);
    assert_eq!(message["files"], json!(["", "cart", "libshop.so"]));
}
