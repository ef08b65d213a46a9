//! Programs whose standard streams are closed: what memprof opens must not come in their place.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::attach::{attach, detach};
use crate::dist::{dist, source, tool_text};
use crate::host::Host;

fn build() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("no_stdio");
    let mut command = Command::new("cc");
    command
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(source("memprof-cli/tests/fixtures/no_stdio.c"))
        .arg("-o")
        .arg(&program);
    tool_text("gcc", &mut command);
    (place, program)
}

fn start(mut command: Command) -> Host {
    command.stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    host
}

fn serves(host: &mut Host, line: &str) {
    host.type_line(line);
    host.wait_for_log(&format!("served {line}"));
    for number in 0..3 {
        let file = fs::read_link(format!("/proc/{}/fd/{number}", host.pid()));
        assert!(file.is_err(), "after {line}, {number} is {file:?}");
    }
}

fn is_profiled(host: &mut Host) {
    host.memprof("activate", &["sample_interval=1KiB"]).exits(0);
    serves(host, "activated");
    let kept = host.place().join("kept.heap");
    for round in 0..20 {
        host.memprof("dump", &["-o", kept.to_str().unwrap()])
            .exits(0);
        let dump = fs::read(&kept).unwrap();
        let foreign = b"a line of the program's log";
        let is_foreign = dump.windows(foreign.len()).any(|window| window == foreign);
        assert!(!dump.is_empty() && !is_foreign, "dump {round}");
        fs::remove_file(&kept).unwrap();
    }
    host.memprof("dump", &[]).exits(0);
    serves(host, "dumped");
}

#[test]
fn daemon_without_standard_streams_is_profiled_and_left() {
    let check = |allocator: &[(&str, &str)]| {
        let (_place, program) = build();
        let mut command = Command::new(program);
        command.envs(allocator.iter().copied());
        let mut host = start(command);
        for _ in 0..3 {
            attach(&host, &[]).exits(0);
            serves(&mut host, "attached");
            is_profiled(&mut host);
            detach(&host, &[]).exits(0);
            serves(&mut host, "detached");
        }
    };
    check(&[]);
    check(&[
        ("LD_PRELOAD", "libjemalloc.so.2"),
        ("MALLOC_CONF", "prof:true,prof_active:false"),
    ]);
}

#[test]
fn program_that_closes_its_standard_streams_later_keeps_them_closed() {
    let (_place, program) = build();
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").arg(program);
    let mut host = start(command);
    host.wait_for_thread("memprof-control");
    is_profiled(&mut host);
}
