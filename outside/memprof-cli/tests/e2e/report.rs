//! `memprof report` as a shell sees it: exit codes, streams, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::dist::dist;
use crate::host::{Host, Setup};
use crate::place::copy_program;

const EMPTY: &str = "heap_v2/512\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n";

fn report(arguments: &[&str]) -> Output {
    let mut memprof = Command::new(env!("CARGO_BIN_EXE_memprof"));
    memprof
        .arg("report")
        .args(arguments)
        .output()
        .expect("memprof runs")
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("it is text")
}

fn named() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../memprof-report/tests/named.heap");
    path.to_str().expect("a path").into()
}

fn written(directory: &Path, content: &str) -> String {
    let path: PathBuf = directory.join("dump.heap");
    fs::write(&path, content).expect("it can be written");
    path.to_str().expect("a path").into()
}

#[test]
fn exit_codes() {
    let directory = tempfile::tempdir().expect("a directory");
    let check = |content: &str, arguments: &[&str], code: i32, message: &str| {
        let file = written(directory.path(), content);
        let output = report(&[&[file.as_str()], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        let reported = text(&output.stderr);
        assert_eq!(reported.matches(message).count(), 1, "{reported}");
        assert_eq!(text(&output.stdout), "");
    };
    check("junk", &[], 1, "failed to recognise the input");
    check("heap_v2/512\n  t*: 0:", &[], 1, "line 2 has no end");
    check(EMPTY, &["--format", "peek"], 2, "peek needs --focus");
    let collapsed = ["--format", "collapsed", "--top", "3"];
    check(EMPTY, &collapsed, 2, "--top is for text, tree, peek");
    check(EMPTY, &["--focus", "("], 2, "not a regular expression");
    check(EMPTY, &["--format", "poem"], 2, "invalid value");
    check(EMPTY, &[], 5, "the profile is empty");
    let dump = "heap_v2/512\n  t*: 1: 64 [0: 0]\n@ 0x400001\n  t*: 1: 64 [0: 0]\n\nMAPPED_LIBRARIES:\n\
                00400000-00500000 r-xp 00000000 fe:00 1 /proc/self/exe\n# build-id: 0011 /proc/self/exe\n";
    let binary = env!("CARGO_BIN_EXE_memprof");
    check(
        &dump.replace("/proc/self/exe", binary),
        &[],
        6,
        "build id mismatch",
    );
}

#[test]
fn data_goes_to_stdout_and_notes_to_stderr() {
    let output = report(&[&named(), "--format", "collapsed"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("main;<img"));
    let later = fs::read_to_string(named())
        .expect("it is there")
        .replace("t*: 8: 18560", "t*: 8: 28560");
    let directory = tempfile::tempdir().expect("a directory");
    let output = report(&[&written(directory.path(), &later)]);
    assert!(output.status.success());
    assert!(
        text(&output.stderr).starts_with("memprof: note: the values before line 14 are not those"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn output_file_is_written_atomically() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("out.svg");
    let out_text = out.to_str().expect("a path");
    assert!(
        report(&[&named(), "--format", "flamegraph", "-o", out_text])
            .status
            .success()
    );
    let whole = fs::read(&out).expect("it is there");
    assert!(whole.trim_ascii_end().ends_with(b"</svg>"));
    let bad = written(directory.path(), "junk");
    assert_eq!(report(&[&bad, "-o", out_text]).status.code(), Some(1));
    assert_eq!(fs::read(&out).expect("it is still there"), whole);
    let mut files: Vec<_> = fs::read_dir(directory.path())
        .expect("it is there")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["dump.heap", "out.svg"]);
}

/// Activates, and writes a dump that holds the leak to `directory`.
fn leak_of(host: &Host, directory: &Path) -> String {
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1 << 20);
    let dump = directory.join("leak.heap").display().to_string();
    host.memprof("dump", &["-o", &dump]).exits(0);
    dump
}

/// Between the leak and malloc lie what the languages put there, above it what starts threads.
#[test]
fn first_row_is_a_function_of_the_program() {
    let check = |setup: Setup, function: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let host = setup.start();
        let dump = leak_of(&host, directory.path());
        let pid = host.pid().to_string();
        let first = |arguments: &[&str]| {
            let table = report(&[&[dump.as_str(), "--pid", &pid], arguments].concat());
            let table = text(&table.stdout).to_owned();
            let row = table.lines().nth(2).map(str::to_owned);
            (row.unwrap_or_default(), table)
        };
        let (row, table) = first(&[]);
        assert!(row.ends_with(function), "{table}");
        let (row, table) = first(&["--plumbing", "grow_cache"]);
        assert!(!row.contains("grow_cache"), "{table}");
        let json = report(&[&dump, "--pid", &pid, "--format", "json"]);
        let json: Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
        assert_eq!(json["functions"][0]["own"], true);
        let (_, flat) = first(&["--flat"]);
        assert!(flat.lines().count() > table.lines().count(), "{flat}");
    };
    check(Setup::of("rust_host"), "  rust_host::work::grow_cache");
    check(Setup::of("c_host_static"), "  grow_cache");
}

#[test]
fn pid_names_a_process_whose_binary_was_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("server");
    copy_program(dist("examples/rust_host"), &program);
    let host = Setup::of("rust_host").program_at(&program).start();
    let dump = leak_of(&host, directory.path());

    fs::remove_file(&program).expect("it can be removed");
    let numbers = report(&[&dump, "--cum"]);
    let notes = text(&numbers.stderr);
    assert!(notes.contains("no such file here"), "{notes}");
    assert!(text(&numbers.stdout).contains("server+0x"));

    copy_program(dist("examples/c_host"), &program);
    let successor = report(&[&dump]);
    assert_eq!(successor.status.code(), Some(6));
    let problem = text(&successor.stderr);
    assert!(problem.contains("build id mismatch"), "{problem}");

    let named = report(&[&dump, "--cum", "--pid", &host.pid().to_string()]);
    let table = text(&named.stdout);
    assert!(table.contains("grow_cache"), "{table}{named:?}");
}

/// As a container's program: its path does not exist outside.
#[test]
fn pid_names_a_process_in_another_mount_namespace() {
    let directory = tempfile::tempdir().expect("a directory");
    let inside = directory.path().join("inside");
    fs::create_dir(&inside).expect("it can be made");
    let (place, source) = (inside.display(), dist("examples/rust_host"));
    let script = format!(
        "mount -t tmpfs none {place}; cp {} {place}/server",
        source.display()
    );
    let server = inside.join("server");
    let host = Setup::of("rust_host").program_at(&server).mounts(&script);
    let host = host.start();
    let dump = leak_of(&host, directory.path());
    assert!(!server.exists());
    let numbers = report(&[&dump, "--cum"]);
    assert!(text(&numbers.stdout).contains("server+0x"));
    let named = report(&[&dump, "--cum", "--pid", &host.pid().to_string()]);
    let table = text(&named.stdout);
    assert!(table.contains("grow_cache"), "{table}{named:?}");
}
