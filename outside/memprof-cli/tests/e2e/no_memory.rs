//! Programs whose allocator has nothing left for memprof's threads.

use std::process::Command;

use tempfile::TempDir;

use crate::attach::{attach, detach};
use crate::fixture::{self, serves};
use crate::host::Host;

fn start() -> (TempDir, Host) {
    let (place, program) = fixture::build("no_memory.c", &["-rdynamic", "-fno-builtin"]);
    (place, fixture::start(Command::new(program)))
}

#[test]
fn failing_allocations_do_not_end_the_program() {
    let (_place, mut host) = start();
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
    let (_place, mut host) = start();
    serves(&mut host, "0");
    let refused = attach(&host, &[]);
    assert_ne!(refused.code, 0, "{refused:?}");
    serves(&mut host, "enough");
}
