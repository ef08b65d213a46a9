//! Programs whose allocator has nothing left for memprof's threads.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::attach::{attach, detach};
use crate::dist::{source, tool_text};
use crate::host::Host;

fn build() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("no_memory");
    let mut command = Command::new("cc");
    command
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic"])
        .arg("-fno-builtin")
        .arg(source("memprof-cli/tests/fixtures/no_memory.c"))
        .arg("-o")
        .arg(&program);
    tool_text("gcc", &mut command);
    (place, program)
}

fn start(program: &PathBuf) -> Host {
    let mut command = Command::new(program);
    command.stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    host
}

fn serves(host: &mut Host, line: &str) {
    host.type_line(line);
    host.wait_for_log(&format!("served {line}"));
}

#[test]
fn failing_allocations_do_not_end_the_program() {
    let (_place, program) = build();
    let mut host = start(&program);
    attach(&host, &[]).exits(0);
    for bytes in [0, 10_000, 100_000] {
        for command in ["status", "stats", "doctor", "ledger", "help"] {
            serves(&mut host, &format!("{bytes} for {command}"));
            // Answered or refused.
            host.memprof(command, &[]);
            serves(&mut host, &format!("enough after {bytes} for {command}"));
        }
    }
    host.memprof("status", &[]).exits(0);
    detach(&host, &[]).exits(0);
    serves(&mut host, "detached");
}

#[test]
fn attachment_without_memory_is_refused_and_the_program_goes_on() {
    let (_place, program) = build();
    let mut host = start(&program);
    serves(&mut host, "0");
    let refused = attach(&host, &[]);
    assert_ne!(refused.code, 0, "{refused:?}");
    serves(&mut host, "enough");
}
