//! Programs whose standard streams are closed: what memprof opens must not come in their place.

use std::fs;
use std::process::Command;

use crate::attach::{attach, detach};
use crate::dist::dist;
use crate::fixture;
use crate::host::Host;

fn serves(host: &mut Host, line: &str) {
    fixture::serves(host, line);
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
fn daemon_without_standard_streams_is_profiled_and_detached() {
    let check = |allocator: &[(&str, &str)]| {
        let (_place, program) = fixture::build("no_stdio.c", &["-pthread"]);
        let mut command = Command::new(program);
        command.envs(allocator.iter().copied());
        let mut host = fixture::start(command);
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
    let (_place, program) = fixture::build("no_stdio.c", &["-pthread"]);
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").arg(program);
    let mut host = fixture::start(command);
    host.wait_for_thread("memprof-control");
    is_profiled(&mut host);
}
