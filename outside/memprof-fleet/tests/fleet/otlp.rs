//! OpenTelemetry's profiles, as their own messages in Python read them.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::place::{CART, HOUR, Place, Run, START};

const PROTO: &str = "opentelemetry-proto==1.45.2";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/otlp.py");
/// Redis, as jemalloc sampled it: stacks of 20 functions in a mean.
const STACKS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../memprof-report/tests/goldens/redis.inuse_space.no_symbols.collapsed"
);
/// The size of the message to that of the same profile in pprof's format.
const MOST: f64 = 1.3;

/// What the messages say of a day's profiles. They are written twice: to a file of each format.
fn read(place: &Place) -> Value {
    let written = ["otlp", "pprof"].map(|format| {
        let file = place.path(format);
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
        place.run(&args).exits(0);
        file
    });
    let mut python = Command::new(testkit::python::interpreter(&[PROTO]).unwrap());
    python.arg(SCRIPT).args(written);
    Run::of(python.output().unwrap()).exits(0).json()
}

/// The module of `MODULE::FUNCTION`.
fn module(function: &str) -> &str {
    function.split_once("::").map_or("", |(module, _)| module)
}

#[test]
fn the_official_messages_read_the_same_totals() {
    let place = Place::new();
    let text = std::fs::read_to_string(Path::new(STACKS)).unwrap();
    // As numbers they would be no names, and not in pprof's format.
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
    for at in 0..2 {
        place.spool_stacks(CART, START + at * HOUR, &held);
    }
    place.drain();
    let said = read(&place);
    let bytes: i64 = held.iter().map(|(_, bytes)| bytes).sum();
    let totals = json!({ "inuse_space bytes": bytes, "inuse_objects count": held.len() });
    assert_eq!(said["totals"], totals, "{said}");
    assert_eq!(said["services"], json!(["cart"]));
    assert_eq!(said["addresses"], json!([]));
    for packed in 0..2 {
        let size = |format| said["bytes"][format][packed].as_f64().unwrap();
        let ratio = size("otlp") / size("pprof");
        assert!(ratio <= MOST, "{ratio}: {said}");
    }
}

#[test]
fn functions_and_modules_without_names_are_not_there_twice() {
    let place = Place::new();
    let held = [
        (vec![("main", "cart"), ("", "")], 100),
        (vec![("main", "cart"), ("", "libshop.so")], 200),
        (vec![("main", "cart"), ("serve", "")], 300),
        (vec![("main", "cart")], 400),
        (vec![], 500),
    ];
    place.spool_stacks(CART, START, &held);
    place.drain();
    let said = read(&place);
    let totals = json!({ "inuse_space bytes": 1500, "inuse_objects count": 5 });
    assert_eq!(said["totals"], totals);
    assert_eq!(said["files"], json!(["", "cart", "libshop.so"]));
}
