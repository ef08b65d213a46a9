//! Effects of a snapshot on the process.

use std::fs;
use std::process::Command;
use std::time::Duration;

use memprof_leaks::snapshot::CopyTarget;

use crate::start;
use crate::target::Target;

const MAX_PAUSE: Duration = Duration::from_secs(5);
const MAX_BYTES: u64 = 1 << 20;

pub(crate) fn children(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap())
        .collect()
}

/// Failed calls, signals, and rounds of the thread with the fewest.
fn counts(target: &mut Target) -> [u64; 3] {
    target.write(b"?\n");
    let line = target.line();
    let numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    numbers.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn snapshots_leave_no_failed_call_signal_or_zombie() {
    let mut target = start("waits", &[]);
    let subject = CopyTarget::inspect(target.pid).unwrap();
    for round in 0..20 {
        let snapshot = subject.take_snapshot(MAX_PAUSE, MAX_BYTES).unwrap();
        assert_eq!(snapshot.threads.len(), 10, "{round}");
        assert!(snapshot.stopped < MAX_PAUSE, "{snapshot:?}");
        assert!(snapshot.release(&subject), "{round}");
        let [failed, signals, rounds] = counts(&mut target);
        assert_eq!([failed, signals], [0, 0], "{round}");
        // Each thread still makes progress.
        while counts(&mut target)[2] < rounds + 2 {}
    }
    assert_eq!(children(target.pid), "");
}

#[test]
fn concurrent_inspect_is_refused() {
    let target = start("waits", &[]);
    let _first = CopyTarget::inspect(target.pid).unwrap();
    let second = CopyTarget::inspect(target.pid).unwrap_err();
    assert!(
        second.to_string().starts_with("another memprof is at work"),
        "{second}"
    );
}

#[test]
fn process_that_executes_or_ends_is_refused() {
    let mut target = Target::from_command(
        Command::new("sh").args(["-c", "echo ready; read x; echo ready; exec cat"]),
    );
    let subject = CopyTarget::inspect(target.pid).unwrap();
    target.write(b"\n");
    assert_eq!(target.line(), "ready\n");
    target.assert_unharmed();
    let error = subject.take_snapshot(MAX_PAUSE, MAX_BYTES).unwrap_err();
    assert_eq!(error.to_string(), "has executed another program meanwhile");
    drop(subject);
    let subject = CopyTarget::inspect(target.pid).unwrap();
    target.signal(nix::sys::signal::Signal::SIGKILL);
    while fs::read_link(format!("/proc/{}/exe", target.pid)).is_ok() {}
    let error = subject.take_snapshot(MAX_PAUSE, MAX_BYTES).unwrap_err();
    assert_eq!(error.to_string(), "has ended meanwhile");
}

/// A copy ends without a signal, and only the program can wait for it.
#[test]
fn program_that_waits_for_children_of_any_kind_does_not_reap_copies() {
    for mode in ["thread", "poll"] {
        let mut target = start("reaps", &[mode]);
        let subject = CopyTarget::inspect(target.pid).unwrap();
        let own = children(target.pid);
        for _ in 0..20 {
            let snapshot = subject.take_snapshot(MAX_PAUSE, MAX_BYTES).unwrap();
            assert!(snapshot.release(&subject), "{mode}");
        }
        target.write(b"?\n");
        assert_eq!(target.line(), "0\n", "{mode}");
        assert_eq!(children(target.pid), own);
    }
}
