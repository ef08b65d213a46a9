//! `memprof leaks --prove --for` and `--at-exit`: leaked objects have the functions that allocated them.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use testkit::processes::plugin_threads;

use crate::dist::dist;
use crate::memprof::memprof;
use crate::processes::{Process, compiled};

/// A program that loses objects all the time.
pub(crate) fn losing() -> (TempDir, Process) {
    let source = "../../../memprof-leaks/tests/processes/loses.c";
    let (place, program) = compiled("cc", source, &["-O1", "-g", "-pthread"]);
    (place, Process::start(Command::new(program), &[]))
}

/// Rows of leaked objects of that size.
fn rows(reply: &Value, sizes: std::ops::Range<u64>) -> Vec<&Value> {
    let rows = reply["leaked"]["by"].as_array().unwrap().iter();
    rows.filter(|row| sizes.contains(&row["size"].as_u64().unwrap()))
        .collect()
}

#[test]
fn leaks_of_a_sampled_time_have_functions() {
    let (place, mut process) = losing();
    let pid = process.pid.to_string();
    let prove = |more: &[&str]| {
        let args = [
            "leaks",
            "--prove",
            &pid,
            "--for",
            "2s",
            "--max-pause",
            "5s",
            "--json",
        ];
        let reply = memprof(place.path(), &[&args[..], more].concat())
            .exits(0)
            .json();
        assert!(plugin_threads(process.pid).unwrap().is_empty());
        reply
    };
    // Many more than half of them were lost before, so the functions of the samples are only told.
    let reply = prove(&["--sample-interval", "1KiB"]);
    let lost = rows(&reply, 1500..1600);
    let sampled = lost.iter().find(|row| row["stack"].is_array()).unwrap();
    assert_eq!(sampled["function"], "lose_report", "{reply}");
    let origins = lost.iter().filter_map(|row| row.get("sampled_origin"));
    for origin in origins {
        assert_eq!(origin["functions"][0]["function"], "lose_report", "{reply}");
    }
    // The interval is found; the text says which it is.
    let args = ["leaks", "--prove", &pid, "--for", "2s", "--max-pause", "5s"];
    let text = memprof(place.path(), &args).exits(0);
    assert!(text.stderr.contains("one sample per "), "{text:?}");
    assert!(text.stdout.contains("\n    lose_report\n"), "{text:?}");
    assert!(!text.stdout.contains("by hold_entry"), "{text:?}");
    process.is_unharmed();
}

#[test]
fn process_is_left_as_it_was_when_interrupted_while_sampled() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let (place, mut process) = losing();
        // A shell that runs the tests in the background has SIGINT ignored.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT,TERM")
            .arg(dist("bin/memprof"));
        command.args(["leaks", "--prove", &process.pid.to_string(), "--for", "10m"]);
        command
            .args(["--max-pause", "5s"])
            .env("MEMPROF_SOCKET_DIR", place.path());
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let memprof = command.spawn().unwrap();
        while plugin_threads(process.pid).unwrap().is_empty() {
            testkit::pause();
        }
        kill(Pid::from_raw(memprof.id().cast_signed()), signal).unwrap();
        let output = memprof.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        // It may have been interrupted before it sampled.
        assert!(plugin_threads(process.pid).unwrap().is_empty(), "{stderr}");
        process.is_unharmed();
    }
}

#[test]
fn process_that_cannot_be_sampled_is_searched_without_stacks() {
    let source = "../../../memprof-leaks/tests/processes/loses.c";
    let (place, program) = compiled("cc", source, &["-O1", "-static", "-pthread", "-Wl,-s"]);
    let process = Process::start(Command::new(program), &[]);
    let pid = process.pid.to_string();
    let args = ["leaks", "--prove", &pid, "--for", "1s", "--max-pause", "5s"];
    let run = memprof(place.path(), &args);
    assert!(run.stderr.contains("so no object has a stack: "), "{run:?}");
}

#[test]
fn each_object_of_a_command_has_its_stack_at_exit() {
    let source = "../../../memprof-leaks/tests/processes/exits.c";
    let (place, program) = compiled("cc", source, &["-O1", "-g"]);
    let at_exit = |options: &[&str], command: &[&str]| {
        let args = [
            &["leaks", "--prove", "--at-exit", "--json"],
            options,
            &["--"],
            command,
        ]
        .concat();
        memprof(place.path(), &args)
    };
    let program = program.to_str().unwrap();
    let reply = at_exit(&[], &[program]).exits(3).json();
    for row in rows(&reply, 0..u64::MAX) {
        let stack = row["stack"].as_array().unwrap();
        assert!(stack.iter().any(|function| function == "leak"), "{row}");
    }
    let reply = at_exit(&["--no-stacks"], &[program]).exits(3).json();
    assert!(
        rows(&reply, 0..u64::MAX)
            .iter()
            .all(|row| row["stack"].is_null()),
        "{reply}"
    );
    at_exit(&["--no-stacks", "--sample-interval", "1KiB"], &[program]).exits(2);
    at_exit(&["--sample-interval", "3"], &[program]).exits(2);
    // What the command starts is not sampled, and a plugin that is missing is no reason to fail.
    let maps = "grep -c memory_profile /proc/self/maps; env | grep -c ^MEMPROF_SAMPLED_CHILD";
    let shell = at_exit(&[], &["sh", "-c", maps]).exits(0);
    assert!(shell.stdout.starts_with(char::is_numeric), "{shell:?}");
    let reply = at_exit(&[], &[Path::new("/sbin/ldconfig").to_str().unwrap(), "-V"]);
    assert_eq!(reply.code, 0, "{reply:?}");
}
