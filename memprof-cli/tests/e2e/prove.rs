//! `memprof leaks --prove`: what nothing points to in a process that nobody prepared.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::memprof::{Run, memprof};
use crate::processes::{Process, compiled};

/// A loaded machine stops threads late.
const PATIENT: [&str; 2] = ["--max-pause", "5s"];

fn prove(pid: u32, args: &[&str]) -> Run {
    let nowhere = tempfile::tempdir().unwrap();
    let pid = pid.to_string();
    let asked = ["leaks", "--prove", &pid].into_iter();
    let args: Vec<_> = asked.chain(PATIENT).chain(args.iter().copied()).collect();
    memprof(nowhere.path(), &args)
}

fn start(program: &Path, mode: &str) -> Process {
    Process::start(Command::new(program), &[mode])
}

#[test]
fn what_a_process_leaked_is_told_to_people_and_scripts() {
    let source = "../../../memprof-leaks/tests/processes/planted.c";
    let (_place, program) = compiled("cc", source, &["-O1", "-pthread"]);
    let mut leaking = start(&program, "leaks");
    let text = prove(leaking.pid, &["--top", "2"]).exits(0).stdout;
    let first = text.lines().next().unwrap();
    assert!(first.contains("objects are leaked"), "{text}");
    assert!(text.contains("more rows, --top shows them"), "{text}");
    assert!(text.contains("of glibc; stood still for"), "{text}");
    let json = prove(leaking.pid, &["--json", "--fail"]).exits(1).stdout;
    let reply: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(reply["allocators"], serde_json::json!(["glibc"]));
    let leaked = reply["leaked"]["objects"].as_u64().unwrap();
    assert!((2900..3100).contains(&leaked), "{json}");
    leaking.is_unharmed();

    let mut clean = start(&program, "clean");
    let text = prove(clean.pid, &["--fail"]).exits(0).stdout;
    assert!(text.contains("nothing is leaked: all "), "{text}");
    clean.is_unharmed();
}

#[test]
fn what_cannot_be_looked_at_is_refused_by_name() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let said = prove(ended.id(), &[]).exits(3).stderr;
    assert!(said.contains("no such process"), "{said}");
    let said = memprof(Path::new("/"), &["leaks", "--prove"])
        .exits(2)
        .stderr;
    assert!(said.contains("<PID>"), "{said}");
}
