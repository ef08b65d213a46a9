//! `memprof leaks --prove` and `memprof holders`: unreachable objects of an unmodified process, and what
//! holds the rest.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::dist::dist;
use crate::memprof::{Run, memprof};
use crate::processes::{Process, compiled};

/// Limit for a busy machine, which stops threads late.
const PATIENT: [&str; 2] = ["--max-pause", "5s"];

fn ask(command: &[&str], pid: u32, args: &[&str]) -> Run {
    let nowhere = tempfile::tempdir().unwrap();
    let pid = pid.to_string();
    let asked = command.iter().copied().chain([pid.as_str()]);
    let args: Vec<_> = asked.chain(PATIENT).chain(args.iter().copied()).collect();
    memprof(nowhere.path(), &args)
}

fn prove(pid: u32, args: &[&str]) -> Run {
    ask(&["leaks", "--prove"], pid, args)
}

fn start(program: &Path, mode: &str) -> Process {
    Process::start(Command::new(program), &[mode])
}

/// A program of whose objects memprof samples one for each 4 KiB, and where its socket lies.
fn sampled(program: &Path, mode: &str) -> (Process, TempDir) {
    let sockets = tempfile::tempdir().unwrap();
    fs::set_permissions(sockets.path(), Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new(dist("bin/memprof"));
    command.args(["run", "--active", "--lg-sample", "12", "--"]);
    command
        .arg(program)
        .env("MEMPROF_SOCKET_DIR", sockets.path());
    (Process::start(command, &[mode]), sockets)
}

#[test]
fn leaks_are_reported_as_text_and_json() {
    let source = "../../../memprof-leaks/tests/processes/planted.c";
    let (_place, program) = compiled("cc", source, &["-O1", "-pthread"]);
    let mut leaking = start(&program, "leaks");
    let text = prove(leaking.pid, &["--top", "2"]).exits(0).stdout;
    let first = text.lines().next().unwrap();
    assert!(first.contains("objects are leaked"), "{text}");
    assert!(text.contains("more rows, --top shows them"), "{text}");
    assert!(
        text.contains("in the heap of glibc; the process was stopped for"),
        "{text}"
    );
    let json = prove(leaking.pid, &["--json", "--fail"]).exits(1).stdout;
    let reply: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(reply["allocators"], serde_json::json!(["glibc"]));
    let leaked = reply["leaked"]["objects"].as_u64().unwrap();
    assert!((2900..3100).contains(&leaked), "{json}");
    leaking.is_unharmed();

    let mut clean = start(&program, "clean");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("leaks.txt");
    let args = ["--fail", "-o", file.to_str().unwrap()];
    assert_eq!(prove(clean.pid, &args).exits(0).stdout, "");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("nothing is leaked: all "), "{text}");
    clean.is_unharmed();
}

#[test]
fn sampled_objects_are_shown_with_their_stacks() {
    let source = "../../../memprof-leaks/tests/processes/planted.c";
    let (_place, program) = compiled("cc", source, &["-O1", "-pthread"]);
    let (mut leaking, _sockets) = sampled(&program, "leaks");
    let reply = prove(leaking.pid, &["--json"]).exits(0).json();
    leaking.is_unharmed();
    let rows = reply["leaked"]["by"].as_array().unwrap();
    let sampled = rows.iter().filter(|row| row["stack"].is_array());
    let mut objects = 0;
    for row in sampled {
        // Root first.
        let stack = row["stack"].as_array().unwrap();
        assert_eq!(stack.last().unwrap(), "make", "{row}");
        objects += row["objects"].as_u64().unwrap();
    }
    assert!((30..1000).contains(&objects), "{reply}");
    let text = prove(leaking.pid, &[]).exits(0).stdout;
    assert!(text.contains("\n    make\n    leak\n"), "{text}");
}

#[test]
fn classes_and_holders_are_reported_as_text_and_json() {
    let source = "../../../memprof-leaks/tests/processes/sessions.cc";
    let (_place, program) = compiled("g++", source, &["-O1"]);
    let mut target = start(&program, "10000");
    let text = prove(target.pid, &[]).exits(0).stdout;
    assert!(text.contains("  shop::Session\n"), "{text}");

    let holders = |args: &[&str]| ask(&["holders"], target.pid, args);
    let text = holders(&[]).exits(0).stdout;
    assert!(
        text.contains(
            " objects are held; each is reachable only through its holder, unless marked"
        ),
        "{text}"
    );
    assert!(text.contains("  variable sessions in target\n"), "{text}");
    assert!(text.contains("      shop::Session\n"), "{text}");
    let json = holders(&["--class", "Order$", "--json"]).exits(0).json();
    assert_eq!(json["method"], "dominators");
    let largest = &json["holders"][0];
    assert_eq!(largest["path"][0]["name"], "shop::Order");
    assert_eq!(largest["path"][4]["kind"], "symbol");
    assert!(largest["objects"].as_u64().unwrap() >= 59_000, "{largest}");
    // The buffer of standard output has 4 KiB: above 1 KiB any size below the same power of two finds it.
    let text = holders(&["--size", "4097"]).exits(0).stdout;
    assert!(text.contains("up to 8.00KiB"), "{text}");
    let nothing = holders(&["--class", "^Nothing$"]).exits(5).stderr;
    assert!(
        nothing.contains("no object that is held matches; `memprof holders PID` lists"),
        "{nothing}"
    );
    let nothing = holders(&["--address", "0x10"]).exits(5).stderr;
    assert!(
        nothing.contains("no object that is held contains the address 0x10"),
        "{nothing}"
    );
    target.is_unharmed();
}

#[test]
fn holders_of_a_function_s_objects_are_reported() {
    let source = "../../../memprof-leaks/tests/processes/sessions.cc";
    let (_place, program) = compiled("g++", source, &["-O1"]);
    let (mut target, _sockets) = sampled(&program, "10000");
    let holders = |args: &[&str]| ask(&["holders"], target.pid, args);
    let text = holders(&["--stack", "_M_construct$"]).exits(0).stdout;
    let second = text.lines().nth(1).unwrap();
    assert!(
        second.ends_with(
            "sampled objects have such a stack; each stands for others, of which no stack is known"
        ),
        "{text}"
    );
    assert!(
        text.contains(
            "  216 B <- shop::Order <- 24 B <- shop::Session <- 56 B <- variable sessions in target\n"
        ),
        "{text}"
    );
    let json = holders(&["--stack", "^make$", "--json"]).exits(0).json();
    let (matching, all) = (&json["sampled"]["matching"], &json["sampled"]["objects"]);
    let matching = matching.as_u64().unwrap();
    assert!(
        matching > 500 && matching <= all.as_u64().unwrap(),
        "{json}"
    );
    let rows = json["holders"].as_array().unwrap().iter();
    let samples = rows.map(|row| row["samples"].as_u64().unwrap());
    assert_eq!(samples.sum::<u64>(), matching);
    let nothing = holders(&["--stack", "^nothing$"]).exits(5).stderr;
    assert!(
        nothing.contains(" sampled objects matches ^nothing$; "),
        "{nothing}"
    );
    let both = holders(&["--stack", "x", "--size", "8"]).exits(2).stderr;
    assert!(both.contains("cannot be used with"), "{both}");
    target.is_unharmed();

    let alone = start(&program, "100");
    let said = ask(&["holders"], alone.pid, &["--stack", "make"])
        .exits(5)
        .stderr;
    assert!(
        said.contains("has no object whose stack is known") && said.contains("`memprof attach`"),
        "{said}"
    );
}

#[test]
fn leaking_command_fails_at_exit() {
    let source = "../../../memprof-leaks/tests/processes/exits.c";
    let (place, program) = compiled("cc", source, &["-O1"]);
    let at_exit = |args: &[&str]| {
        let asked = ["leaks", "--prove", "--at-exit"];
        memprof(place.path(), &[&asked[..], args].concat())
    };
    let program = program.to_str().unwrap();
    let said = at_exit(&["--", program]).exits(3).stderr;
    assert!(said.contains("165 objects are leaked, "), "{said}");
    assert!(said.contains("nothing pointed to them\n"), "{said}");
    let script = format!("{program}; true");
    // The shell, not its child.
    let said = at_exit(&["--", "sh", "-c", &script]).exits(0).stderr;
    assert!(said.contains("nothing is leaked"), "{said}");
    let page = at_exit(&["--format", "html", "--", program]).exits(3);
    assert!(page.stdout.starts_with("<!doctype html>"), "{page:?}");
    let said = at_exit(&["--json", "--", program, "clean"]).exits(3).json();
    assert_eq!(said["leaked"]["objects"], 0);
    let said = at_exit(&["--", "sh", "-c", "kill -TERM $$"])
        .exits(143)
        .stderr;
    assert!(
        said.contains("not searched for leaks: a signal ended"),
        "{said}"
    );
    // The status is the command's own, unless --fail asks for another.
    let leak = "import ctypes\nfor _ in range(9): ctypes.CDLL(None).malloc(5000)\nctypes.CDLL(None)._exit(0)";
    let python = ["--", "python3", "-c", leak];
    at_exit(&python).exits(0);
    at_exit(&[&["--fail"], &python[..]].concat()).exits(1);
    // A program without a heap has leaked nothing.
    for options in [&["--fail", "--", "true"][..], &["--", "true"]] {
        let said = at_exit(options).exits(0).stderr;
        assert!(said.contains("nothing is leaked"), "{said}");
    }
    at_exit(&["--fail", "--", "false"]).exits(1);
    at_exit(&["--fail", "--", "sh", "-c", "exit 9"]).exits(9);
    at_exit(&["--", "/no/such/program"]).exits(1);
    at_exit(&[]).exits(2);
}

#[test]
fn refused_process_is_named() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let said = prove(ended.id(), &[]).exits(3).stderr;
    assert!(said.contains("no such process"), "{said}");
    let said = memprof(Path::new("/"), &["leaks", "--prove"])
        .exits(2)
        .stderr;
    assert!(said.contains("<TARGET|--at-exit>"), "{said}");
    memprof(Path::new("/"), &["leaks", "--format", "dot"]).exits(2);
}
