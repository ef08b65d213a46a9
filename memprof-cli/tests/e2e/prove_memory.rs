//! What `memprof leaks --prove` and `memprof holders` take of memory themselves.
#![expect(unsafe_code, reason = "wait4(2) is to be had as a C function alone")]

use std::fs::File;
use std::mem::MaybeUninit;
use std::process::Command;

use serde_json::Value;

use crate::dist::dist;
use crate::processes::{Process, compiled};

/// Of the process's resident memory, in hundredths, and not less: as the help says.
const SHARE: u64 = 12;
const LEAST: u64 = 128 << 20;

/// The most memory that `memprof` had at a time, in bytes, as the kernel tells it, and what it printed.
fn run(args: &[&str]) -> (u64, Value) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("reply");
    let mut command = Command::new(dist("bin/memprof"));
    command.args(args).args(["--json", "--max-pause", "10s"]);
    command.stdout(File::create(&path).unwrap());
    #[expect(clippy::zombie_processes, reason = "wait4(2) waits for it")]
    let memprof = command.spawn().unwrap();
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::uninit());
    let pid = memprof.id().cast_signed();
    // SAFETY: wait4(2) writes to the two, which live; nobody else waits for this child.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((waited, status), (pid, 0), "{args:?}");
    // SAFETY: wait4(2) filled it: it returned the child's pid.
    let usage = unsafe { usage.assume_init() };
    let reply = std::fs::read(&path).unwrap();
    (
        usage.ru_maxrss.cast_unsigned() << 10,
        serde_json::from_slice(&reply).unwrap(),
    )
}

#[test]
fn no_more_is_taken_than_is_promised() {
    let source = "../../../memprof-leaks/tests/processes/many.c";
    let (_place, program) = compiled("cc", source, &["-O1"]);
    let mut many = Process::start(Command::new(&program), &[]);
    let pid = many.pid.to_string();
    for args in [&["leaks", "--prove", &pid][..], &["holders", &pid]] {
        let (peak, reply) = run(args);
        let rss = reply["rss"].as_u64().unwrap();
        let promised = (rss / 100 * SHARE).max(LEAST);
        assert_eq!(reply["memory_limit_bytes"], promised);
        assert!(rss > 250 << 20, "{rss}");
        assert!(reply["objects"].as_u64().unwrap() > 1_000_000);
        assert!(peak <= promised, "{args:?}: {peak} of {promised}");
        let told = reply["memory_bytes"].as_u64().unwrap();
        assert!(told <= peak && told > peak / 2, "{told} of {peak}");
    }
    many.is_unharmed();
}
