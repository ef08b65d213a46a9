//! Hosts that cannot answer.

use std::fs;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::host::{Host, PATIENCE, Setup};
use crate::memprof::memprof;

/// Stops a host, and returns when it is.
fn stop(host: &Host) {
    host.signal(Signal::SIGSTOP);
    let status = format!("/proc/{}/status", host.pid());
    let begun = Instant::now();
    while !fs::read_to_string(&status)
        .unwrap()
        .contains("State:\tT (stopped)")
    {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn stopped_hosts_are_told_as_such() {
    let mut host = Setup::of("c_host").start();
    host.memprof("activate", &[]).exits(0);
    stop(&host);
    let commands = [
        "status",
        "stats",
        "activate",
        "deactivate",
        "dump",
        "doctor",
        "ledger",
        "record",
    ];
    for command in commands {
        let args: &[&str] = match command {
            "record" => &["--for", "1s"],
            _ => &[],
        };
        let refused = host.memprof(command, args).exits(3);
        let remedy = format!(
            "it is stopped (SIGSTOP); continue it first (kill -CONT {})",
            host.pid()
        );
        assert!(refused.stderr.contains(&remedy), "{command}: {refused:?}");
    }
    let listed = memprof(&host.socket_dir(), &["ps"]);
    assert!(listed.stderr.contains("is stopped (SIGSTOP)"), "{listed:?}");
    host.signal(Signal::SIGCONT);
    host.memprof("status", &[]).exits(0);
    assert!(host.terminate().success());
}
