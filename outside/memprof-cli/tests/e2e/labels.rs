//! Memory by the labels of threads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::curl::curl;
use crate::dist::{dist, source, tool_text};
use crate::host::Host;
use crate::memprof::memprof;
use crate::server::Server;

/// A program that sets labels in OpenTelemetry's thread context, with its own allocator or another.
fn pool(allocator: &[&str]) -> Host {
    let place = tempfile::tempdir().unwrap();
    Host::run(&pool_in(&place), allocator, place)
}

fn pool_in(place: &TempDir) -> PathBuf {
    let program = place.path().join("pool");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-rdynamic", "-o"]).arg(&program);
    cc.arg(source("outside/memprof-cli/tests/fixtures/labels/pool.c"));
    tool_text("gcc", cc.args(["-lpthread", "-lrt"]));
    program
}

/// A program that sets labels by the functions of `memprof_host.h`.
pub(crate) fn pushes(allocator: &[&str]) -> Host {
    let place = tempfile::tempdir().unwrap();
    Host::run(&pushes_in(&place), allocator, place)
}

fn pushes_in(place: &TempDir) -> PathBuf {
    let program = place.path().join("pushes");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-o"]).arg(&program);
    cc.arg(source("outside/memprof-cli/tests/fixtures/labels/pushes.c"));
    cc.arg("-I")
        .arg(dist("include"))
        .arg(dist("lib/libmemprof_host.a"));
    tool_text("gcc", cc.args(["-lpthread", "-ldl", "-lm"]));
    program
}

/// The program as it is, which `memprof attach` then puts the plugin into; with the library preloaded.
fn attached(program: &Path, library: Option<&str>, place: TempDir) -> Host {
    let mut command = Command::new(program);
    command.stdin(Stdio::piped());
    command.envs(library.map(|library| ("LD_PRELOAD", library)));
    let host = Host::spawn(command, place);
    let (pid, dumps) = (host.pid().to_string(), host.dump_dir());
    let dumps = format!("dump_dir={}", dumps.display());
    memprof(&host.socket_dir(), &["attach", &pid, &dumps]).exits(0);
    host
}

/// Lets it do a kind of work. Returns the number of pieces per second.
fn works(host: &mut Host, kind: &str) -> u64 {
    host.type_line(kind);
    let line = host.wait_for_log(&format!("served {kind}"));
    let (rate, _) = line.split_once(' ').unwrap();
    rate.parse().unwrap()
}

/// Report of a dump, as JSON.
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

/// Checks that nearly all memory of each function has the label that is given with it.
fn told_apart(host: &Host, dump: &Value, functions: &[(String, String)]) {
    for (function, label) in functions {
        let all = held(&report(host, dump, &[]), function);
        let right = held(&report(host, dump, &["--label", label]), function);
        assert!(all > 0, "{function}");
        assert!(right * 100 >= all * 95, "{label}: {right} of {all}");
    }
}

/// Both ways to sample: our sampler before the C library's allocator, and jemalloc's own.
pub(crate) const ALLOCATORS: [&[&str]; 2] = [&[], &["--allocator", "jemalloc"]];

#[test]
fn tasks_across_threads_have_separate_labels() {
    for allocator in ALLOCATORS {
        let place = tempfile::tempdir().unwrap();
        let mut host = Host::run(&dist("examples/tokio_labels"), allocator, place);
        let fine = ["labels=route,tenant,thread", "sample_interval=4KiB"];
        host.memprof("activate", &fine).exits(0);
        host.type_line("requests");
        host.wait_for_log("served requests");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let functions = [
            ("read_index", "route=/search"),
            ("fill_cart", "route=/cart"),
            ("render_page", "route=/export"),
            ("render_page", "tenant=acme"),
            ("fill_cart", "tenant=[none]"),
        ];
        let functions = functions
            .map(|(function, label)| (format!("tokio_labels::{function}"), label.to_owned()));
        told_apart(&host, &dump, &functions);
        let by = report(&host, &dump, &["--by", "route"]);
        assert_eq!(by["by"]["values"][0]["value"], "/export", "{by}");
    }
}

#[test]
fn c_program_sets_labels_of_its_threads() {
    for allocator in ALLOCATORS {
        let mut host = pushes(allocator);
        let fine = ["labels=route", "sample_interval=4KiB"];
        host.memprof("activate", &fine).exits(0);
        host.type_line("requests");
        host.wait_for_log("served requests");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let works = [0, 1, 2, 3].map(|route| (format!("work_{route}"), format!("route=/{route}")));
        told_apart(&host, &dump, &works);
        told_apart(
            &host,
            &dump,
            &[("work_nested".into(), "route=nested".into())],
        );
    }
}

#[test]
fn metrics_show_the_newest_dump_by_label() {
    let mut host = pushes(&["--allocator", "jemalloc"]);
    let fine = ["labels=route", "sampler=memprof", "sample_interval=4KiB"];
    host.memprof("activate", &fine).exits(0);
    host.type_line("requests");
    host.wait_for_log("served requests");
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    // A newer one of another kind says nothing of who holds how much.
    host.memprof("dump", &["kind=pinned"]).exits(0);
    let server = Server::of(&host, &[]);
    let of_label = "memprof_label_inuse_bytes{key=\"route\",value=\"/0\"}";
    let text = curl(&server.address, "H/metrics").is(200).text();
    assert!(text.contains(of_label), "{text}");
    assert!(text.contains("memprof_label_dump_time_seconds "), "{text}");
    drop(server);
    std::fs::write(dump["path"].as_str().unwrap(), "damaged").unwrap();
    let server = Server::of(&host, &[]);
    let text = curl(&server.address, "H/metrics").is(200).text();
    assert!(text.contains("memprof_profiling_active 1\n"), "{text}");
    assert!(!text.contains("memprof_label_"), "{text}");
}

#[test]
fn go_shows_labels_and_other_tools_the_total() {
    let mut host = pushes(&["--allocator", "jemalloc"]);
    let fine = ["labels=route", "sample_interval=4KiB"];
    host.memprof("activate", &fine).exits(0);
    host.type_line("requests");
    host.wait_for_log("served requests");
    let dump = host.memprof("dump", &["--json"]).exits(0).json();
    let by = report(&host, &dump, &["--by", "route"]);
    let write = |format: &str, name: &str| {
        let file = host.place().join(name);
        let (dump, file) = (dump["path"].as_str().unwrap(), file.to_str().unwrap());
        let args = ["report", dump, "--format", format, "-o", file];
        memprof(&host.socket_dir(), &args).exits(0);
        file.to_owned()
    };
    let read = |package: &str, command: &[&str]| {
        let mut tool = Command::new(command[0]);
        tool.args(&command[1..]).env("HOME", host.place());
        tool_text(package, tool.current_dir(host.place()))
    };
    let pprof = write("pprof", "labels.pb.gz");
    let tags = ["-tags", "-sample_index=inuse_space", "-unit=B", &pprof];
    let tags = read("golang-go", &[&["go", "tool", "pprof"], &tags[..]].concat());
    for value in by["by"]["values"].as_array().unwrap() {
        let line = format!("{}.0B (", value["flat"].as_i64().unwrap());
        let reported = tags
            .lines()
            .find(|text| text.trim_start().starts_with(&line));
        let name = format!(": {}", value["value"].as_str().unwrap());
        assert!(
            reported.is_some_and(|reported| reported.ends_with(&name)),
            "{name} {line}: {tags}"
        );
    }
    let total = by["totals"]["inuse_space"].as_f64().unwrap();
    let jeprof = write("jeprof", "labels.heap");
    let text = read(
        "libjemalloc-dev",
        &["jeprof", "--text", "--show_bytes", &jeprof],
    );
    let line = text.lines().find_map(|line| line.strip_prefix("Total: "));
    let reported: f64 = line.unwrap().trim_end_matches(" B").parse().unwrap();
    assert!(
        (reported / total - 1.0).abs() < 1e-3,
        "jeprof: {reported}, memprof: {total}"
    );
}

#[test]
fn pool_with_labels_per_request_is_separated() {
    const FINE: [&str; 3] = ["--json", "labels=route,thread", "sample_interval=4KiB"];
    for allocator in ALLOCATORS {
        let mut host = pool(allocator);
        let active = host.memprof("activate", &FINE).exits(0).json();
        assert_eq!(active["labels"], serde_json::json!(["route", "thread"]));
        let rate = works(&mut host, "pool");
        assert!(rate >= 10_000, "{rate} pieces a second");
        works(&mut host, "signals");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let routes = [0, 1, 2, 3].map(|route| (format!("work_{route}"), format!("route=/{route}")));
        told_apart(&host, &dump, &routes);
        let by = report(&host, &dump, &["--by", "thread"]);
        let names = &by["by"]["values"];
        assert_eq!(names[0]["value"], "pool", "{names}");
        host.memprof("deactivate", &[]).exits(0);
    }
}

#[test]
fn attached_processes_have_labels() {
    const FINE: &str = "sample_interval=4KiB";
    for library in [None, Some("libjemalloc.so.2")] {
        let place = tempfile::tempdir().unwrap();
        let mut host = attached(&pool_in(&place), library, place);
        let active = host.memprof("activate", &["--json", "labels=route,thread", FINE]);
        let active = active.exits(0).json();
        assert_eq!(active["labels"], serde_json::json!(["route", "thread"]));
        works(&mut host, "pool");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let routes = [0, 1, 2, 3].map(|route| (format!("work_{route}"), format!("route=/{route}")));
        told_apart(&host, &dump, &routes);
        told_apart(&host, &dump, &[("serve".into(), "thread=pool".into())]);

        let place = tempfile::tempdir().unwrap();
        let mut host = attached(&pushes_in(&place), library, place);
        host.memprof("activate", &["labels=route", FINE]).exits(0);
        host.type_line("requests");
        host.wait_for_log("served requests");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        told_apart(&host, &dump, &routes);
        told_apart(
            &host,
            &dump,
            &[("work_nested".into(), "route=nested".into())],
        );
    }
}

#[test]
fn ten_thousand_labels_stay_bounded() {
    for allocator in ALLOCATORS {
        let mut host = pool(allocator);
        let fine = ["labels=route:0", "sample_interval=4KiB"];
        host.memprof("activate", &fine).exits(0);
        let first = host.memprof("dump", &["--json"]).exits(0).json();
        let bytes = |dump: &Value, what: &str| dump[what].as_u64().unwrap();
        let before = bytes(&first, "metadata_bytes");
        works(&mut host, "many");
        let dump = host.memprof("dump", &["--json"]).exits(0).json();
        let metadata = bytes(&dump, "metadata_bytes");
        eprintln!(
            "{} bytes of a dump, {before} and then {metadata} of metadata",
            dump["bytes"]
        );
        assert!(metadata < before + (4 << 20), "{dump}");
        assert!(bytes(&dump, "bytes") < 1 << 20, "{dump}");
        let status = host.memprof("status", &["--json"]).exits(0).json();
        let sets = &status["label_sets"];
        assert_eq!([&sets["seen"], &sets["most"]], [1000, 1000], "{sets}");
        assert!(bytes(sets, "bytes") < 1 << 20, "{sets}");
        let others = bytes(sets, "others");
        let warnings = dump["warnings"].to_string();
        assert!(
            warnings.contains(&format!("{others} samples had other labels")),
            "{warnings}"
        );
        let by = report(&host, &dump, &["--by", "route"]);
        let values = by["by"]["values"].as_array().unwrap();
        assert_eq!(values[0]["value"], "[other]", "{by}");
        assert_eq!(values.len(), 1001);
    }
}

#[test]
fn hostile_label_writer_breaks_nothing() {
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
fn unset_labels_are_refused_with_the_remedy() {
    let check = |host: &Host, labels: &str, code, error: &str| {
        let refused = host.memprof("activate", &[labels]).exits(code);
        assert!(refused.stderr.contains(error), "{}", refused.stderr);
    };
    let host = Host::run(
        &dist("examples/unprepared"),
        &[],
        tempfile::tempdir().unwrap(),
    );
    check(
        &host,
        "labels=route:x",
        2,
        "valid: off, or up to 8 of `thread`, KEY and KEY:INDEX",
    );
    for labels in ["labels=route", "labels=route:0"] {
        check(&host, labels, 4, "labels=thread records thread names");
    }
    let status = host.memprof("status", &["--json"]).exits(0).json();
    assert_eq!(status["profiling"], "inactive", "{status}");
    host.memprof("activate", &["labels=thread"]).exits(0);

    let host = pool(&[]);
    let keys = "the keys of OpenTelemetry's process context are: route";
    check(&host, "labels=thread,tenant", 4, keys);
    let host = pushes(&[]);
    check(
        &host,
        "labels=tenant:0",
        4,
        "name the key alone: labels=tenant",
    );
}
