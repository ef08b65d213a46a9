//! Programs that take descriptors for theirs alone, as shells do: memprof's have numbers of their own.

use std::process::Command;

use crate::attach::{attach, detach};
use crate::dist::dist;
use crate::fixture::{build, serves, start};
use crate::host::Host;
use crate::memprof::memprof;

/// Each message must reach the program although it has closed every descriptor since the one before.
fn is_profiled(host: &mut Host) {
    let kept = host.place().join("kept.heap");
    host.memprof("activate", &["sample_interval=1KiB"]).exits(0);
    serves(host, "activated");
    host.memprof("dump", &["-o", kept.to_str().unwrap()])
        .exits(0);
    serves(host, "dumped");
    for _ in 0..5 {
        host.memprof("status", &[]).exits(0);
        serves(host, "asked");
    }
}

#[test]
fn attached_program_keeps_the_numbers_of_its_descriptors() {
    let (_place, program) = build("counts_descriptors.c", &[]);
    let mut host = start(Command::new(&program));
    serves(&mut host, "started");
    for _ in 0..3 {
        attach(&host, &[]).exits(0);
        serves(&mut host, "attached");
        is_profiled(&mut host);
        detach(&host, &[]).exits(0);
        serves(&mut host, "detached");
    }
    let target = host.pid().to_string();
    let record = ["record", "--pid", &target, "--for", "100ms"];
    // It allocates nothing meanwhile, so that its profile is empty.
    memprof(&host.socket_dir(), &record).exits(5);
    serves(&mut host, "recorded");
}

#[test]
fn program_run_with_the_plugin_keeps_the_numbers_of_its_descriptors() {
    let (_place, program) = build("counts_descriptors.c", &[]);
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").arg(program);
    let mut host = start(command);
    host.wait_for_thread("memprof-control");
    serves(&mut host, "started");
    is_profiled(&mut host);
}
