//! Whose memory it is, told by the labels of threads.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::dist::{dist, source, tool_text};
use crate::host::Host;
use crate::memprof::memprof;

/// A program that sets labels in OpenTelemetry's thread context, with its own allocator or another.
fn pool(allocator: &[&str]) -> Host {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("pool");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-rdynamic", "-o"]).arg(&program);
    cc.arg(source("memprof-cli/tests/fixtures/labels/pool.c"));
    tool_text("gcc", cc.args(["-lpthread", "-lrt"]));
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").args(allocator).arg("--").arg(&program);
    command.env("MEMPROF_LOG", "info").stdin(Stdio::piped());
    let host = Host::spawn(command, place);
    host.wait_for_log("control socket ");
    host
}

/// Lets it do a kind of work, and returns how many pieces a second.
fn works(host: &mut Host, kind: &str) -> u64 {
    host.type_line(kind);
    let line = host.wait_for_log(&format!("served {kind}"));
    let (rate, _) = line.split_once(' ').unwrap();
    rate.parse().unwrap()
}

/// A dump, and what a report in JSON says of it.
fn report(host: &Host, dump: &Value, args: &[&str]) -> Value {
    let path = dump["path"].as_str().unwrap();
    let args = [&["report", "--format", "json"], args, &[path]].concat();
    memprof(&host.socket_dir(), &args).exits(0).json()
}

fn held(report: &Value, function: &str) -> i64 {
    let mut functions = report["functions"].as_array().unwrap().iter();
    let row = functions.find(|row| row["name"] == function);
    row.map_or(0, |row| row["cum"].as_i64().unwrap())
}

#[test]
fn a_pool_that_changes_labels_with_each_request_is_told_apart() {
    const FINE: [&str; 3] = ["--json", "labels=route:0,thread", "sample_interval=4KiB"];
    for allocator in [&[][..], &["--allocator", "jemalloc"]] {
        let mut host = pool(allocator);
        let active = host.memprof("activate", &FINE).exits(0).json();
        assert_eq!(active["labels"], serde_json::json!(["route", "thread"]));
        let rate = works(&mut host, "pool");
        assert!(rate >= 10_000, "{rate} pieces a second");
        works(&mut host, "signals");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let (mut right, mut all) = (0, 0);
        for route in 0..4 {
            let function = format!("work_{route}");
            all += held(&report(&host, &dump, &[]), &function);
            let label = format!("route=/{route}");
            right += held(&report(&host, &dump, &["--label", &label]), &function);
        }
        assert!(right * 100 >= all * 95, "{allocator:?}: {right} of {all}");
        let by = report(&host, &dump, &["--by", "thread"]);
        let names = &by["by"]["values"];
        assert_eq!(names[0]["value"], "pool", "{names}");
        host.memprof("deactivate", &[]).exits(0);
    }
}

#[test]
fn ten_thousand_labels_stay_bounded() {
    let mut host = pool(&[]);
    let fine = ["labels=route:0", "sample_interval=4KiB"];
    host.memprof("activate", &fine).exits(0);
    works(&mut host, "many");
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let warnings = dump["warnings"].to_string();
    assert!(warnings.contains("1,000 different sets"), "{warnings}");
    assert!(dump["bytes"].as_u64().unwrap() < 1 << 20, "{dump}");
    let by = report(&host, &dump, &["--by", "route"]);
    let values = by["by"]["values"].as_array().unwrap();
    assert_eq!(values[0]["value"], "[other]", "{by}");
    assert_eq!(values.len(), 1001);
}

#[test]
fn a_hostile_writer_of_labels_breaks_nothing() {
    let mut host = pool(&[]);
    let fine = ["labels=route:0", "sample_interval=4KiB"];
    host.memprof("activate", &fine).exits(0);
    works(&mut host, "hostile");
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let path = dump["path"].as_str().unwrap();
    let text = memprof(&host.socket_dir(), &["report", "--by", "route", path]).exits(0);
    assert!(!text.stdout.contains('\u{1b}'), "{text:?}");
    assert!(text.stdout.contains("# label: 1 route="), "{text:?}");
    assert_eq!(text.stderr, "");
    for format in ["jeprof", "collapsed"] {
        let args = ["report", "--format", format, path];
        let other = memprof(&host.socket_dir(), &args).exits(0).stdout;
        assert!(!other.contains("0x4d50"), "{other}");
    }
}

#[test]
fn labels_that_nobody_sets_are_refused_with_the_remedy() {
    let host = crate::host::Setup::without_profiling("c_host").start();
    let check = |labels: &str, code, error: &str| {
        let refused = host.memprof("activate", &[labels]).exits(code);
        assert!(refused.stderr.contains(error), "{}", refused.stderr);
    };
    check(
        "labels=route",
        2,
        "valid: off, or up to 8 of `thread` and KEY:INDEX",
    );
    check(
        "labels=route:0",
        4,
        "labels=thread tells the threads' names",
    );
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive", "{status}");
    host.memprof("activate", &["labels=thread"]).exits(0);
}
