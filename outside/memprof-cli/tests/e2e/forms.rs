//! Options of the form of a result, which are the same on every command that has one, and reports of running processes.

use std::fs;
use std::process::Command;

use crate::host::{Host, Setup};
use crate::memprof::memprof;

fn sampling_host() -> Host {
    let host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1_000_000);
    host
}

/// A process without the plugin that waits.
fn outsider() -> Host {
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready >&2; exec sleep 1000"]);
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    host
}

#[test]
fn running_process_is_reported_on_like_a_file() {
    let host = sampling_host();
    let pid = host.pid().to_string();
    let run = |args: &[&str]| memprof(&host.socket_dir(), args);
    for target in [pid.as_str(), "c_host", &format!("c_host/{pid}")] {
        let shown = run(&["report", target]).exits(0).stdout;
        assert!(shown.contains("grow_cache"), "{target}: {shown}");
    }
    let by_option = run(&["report", "-t", &pid]).exits(0).stdout;
    assert!(by_option.contains("grow_cache"), "{by_option}");
    let lines = run(&["report", &pid, "--lines", "--top", "3"])
        .exits(0)
        .stdout;
    assert!(lines.contains(".c:"), "{lines}");
    let json = run(&["report", &pid, "--format", "json"]).exits(0).json();
    assert!(json["functions"].is_array(), "{json}");
    // A process that samples nothing, one without the plugin, and no process at all.
    host.memprof("deactivate", &[]).exits(0);
    let idle = run(&["report", &pid]).exits(5).stderr;
    assert!(idle.contains(&format!("memprof record {pid}")), "{idle}");
    let outsider = outsider();
    let pid = outsider.pid().to_string();
    let outside = run(&["report", &pid]).exits(3).stderr;
    assert!(
        outside.contains(&format!("`memprof record {pid}`")),
        "{outside}"
    );
    let missing = run(&["report", "no-such.heap"]).exits(1).stderr;
    assert!(missing.contains("No such file"), "{missing}");
}

#[test]
fn record_writes_the_report_in_its_format() {
    let host = sampling_host();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("recorded");
    let file = file.to_str().unwrap();
    let check = |args: &[&str], starts: &[u8], table: bool| {
        let run = host.memprof("record", &[&["--for", "1s", "-o", file], args].concat());
        let run = run.exits(0);
        assert!(fs::read(file).unwrap().starts_with(starts), "{args:?}");
        assert_eq!(
            run.stdout.contains("grow_cache"),
            table,
            "{args:?}: {run:?}"
        );
    };
    check(&[], b"heap_v2/4096", true);
    check(&["--format", "html"], b"<!doctype html>", false);
    check(&["--format", "json"], b"{", false);
    let shown = host.memprof(
        "record",
        &["--for", "1s", "--format", "collapsed", "-o", "-"],
    );
    assert!(shown.exits(0).stdout.contains(";grow_cache "), "no stacks");
    host.memprof("record", &["--for", "1s", "-o", "-"]).exits(2);
    host.memprof("record", &["--for", "1s", "--open", "--format", "dot"])
        .exits(2);
}

#[test]
fn results_have_the_same_forms() {
    let host = outsider();
    let pid = host.pid().to_string();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("result");
    let file = file.to_str().unwrap();
    for command in [&["ledger"][..], &["holders"], &["leaks", "--prove"]] {
        let run = |args: &[&str]| {
            let mut memprof = Command::new(crate::dist::dist("bin/memprof"));
            let memprof = memprof.args(command).arg(&pid).args(args);
            let memprof = memprof.env_remove("BROWSER").env_remove("DISPLAY");
            crate::memprof::Run::from_command(memprof.env("TMPDIR", place.path()))
        };
        let wide: &[&str] = match command[0] {
            "ledger" => &[],
            _ => &["--max-pause", "5s"],
        };
        let with = |args: &[&'static str]| run(&[wide, args].concat());
        assert_eq!(with(&["--format", "json"]).exits(0).json()["status"], "ok");
        run(&[wide, &["--format", "html", "-o", file]].concat()).exits(0);
        assert!(fs::read(file).unwrap().starts_with(b"<!doctype html>"));
        let opened = with(&["--open"]).exits(0).stdout;
        assert!(opened.ends_with(".html\n"), "{command:?}: {opened}");
        with(&["--open", "--json"]).exits(2);
        with(&["--format", "dot"]).exits(2);
    }
}

/// memprof's own memory is in no row, neither while the plugin is in the process nor after it was detached.
#[test]
fn holders_list_nothing_of_memprof_s() {
    let host = outsider();
    let pid = host.pid().to_string();
    let run = |args: &[&str]| memprof(&host.socket_dir(), args);
    let check = || {
        let holders = [
            "holders",
            &pid,
            "--json",
            "--top",
            "1000",
            "--max-pause",
            "5s",
        ];
        let holders = run(&holders).exits(0).stdout;
        let rows = holders.split("\"holders\":").nth(1).unwrap();
        let rows = rows.split("\"classes\":").next().unwrap();
        assert!(!rows.contains("memory_profile.so"), "{rows}");
        assert!(!rows.contains("(memprof-"), "{rows}");
    };
    run(&["attach", &pid]).exits(0);
    run(&["activate", &pid]).exits(0);
    check();
    run(&["detach", &pid]).exits(0);
    check();
}
