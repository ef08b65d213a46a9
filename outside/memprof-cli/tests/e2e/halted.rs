//! Hosts that cannot answer.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Instant;

use memprof_ptrace::stop_all::stop_all;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::dist::{dist, source, tool_text};
use crate::host::{Host, Setup, TEST_TIMEOUT};
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
        assert!(begun.elapsed() < TEST_TIMEOUT);
        testkit::pause();
    }
}

#[test]
fn stopped_host_is_reported() {
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

/// A program that has the loader's lock until a line comes.
fn that_holds_the_loader(place: &TempDir) -> Host {
    let library = place.path().join("libholds.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library);
    tool_text(
        "gcc",
        cc.arg(source("outside/memprof-cli/tests/fixtures/holds_loader.c")),
    );
    let mut command = Command::new("perl");
    let script = "require DynaLoader; DynaLoader::dl_load_file(shift); sleep 60";
    command.args(["-e", script]).arg(library);
    command.stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    host
}

#[test]
fn process_stopped_during_attach_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let mut host = that_holds_the_loader(&place);
    let attaching = Command::new(dist("bin/memprof"))
        .args(["attach", &host.pid().to_string()])
        .env("MEMPROF_SOCKET_DIR", host.socket_dir())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    // The thread that waits for the loader.
    while host.threads().len() < 2 {
        assert!(begun.elapsed() < TEST_TIMEOUT);
        testkit::pause();
    }
    stop(&host);
    let begun = Instant::now();
    let ended = attaching.wait_with_output().unwrap();
    assert!(begun.elapsed() < TEST_TIMEOUT / 2, "{ended:?}");
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{text}");
    let words = ["is stopped (SIGSTOP)", "nothing is left there"];
    assert!(words.iter().all(|words| text.contains(words)), "{text}");
    host.signal(Signal::SIGCONT);
    host.type_line("go on");
    let begun = Instant::now();
    while host.threads().len() > 1 {
        assert!(begun.elapsed() < TEST_TIMEOUT);
        testkit::pause();
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", host.pid())).unwrap();
    assert!(!maps.contains("memory_profile"), "{maps}");
    host.memprof("status", &[]).exits(3);
}

#[test]
fn traced_host_is_reported() {
    let host = Setup::of("c_host").start();
    let check = |words: &str| {
        for command in ["status", "activate", "dump", "doctor"] {
            let refused = host.memprof(command, &[]).exits(3);
            assert!(refused.stderr.contains(words), "{command}: {refused:?}");
        }
        let pid = host.pid().to_string();
        for command in [&["attach"][..], &["leaks", "--prove"], &["holders"]] {
            let refused = memprof(&host.socket_dir(), &[command, &[&pid]].concat());
            assert!(refused.code == 4 || refused.code == 3, "{refused:?}");
        }
    };
    let mut threads = Vec::new();
    stop_all(host.pid(), Instant::now() + TEST_TIMEOUT, &mut threads).unwrap();
    check("which traces it (a debugger?)");
    drop(threads);
    host.memprof("status", &[]).exits(0);
}

#[test]
fn pid_as_target_queries_no_other_host() {
    let sockets = TempDir::new().unwrap();
    let other = UnixListener::bind(sockets.path().join("1.sock")).unwrap();
    other.set_nonblocking(true).unwrap();
    let own = std::process::id().to_string();
    for args in [&["status", "-t", &own][..], &["detach", &own]] {
        let refused = memprof(sockets.path(), args).exits(3);
        let reason = "runs without the plugin";
        assert!(refused.stderr.contains(reason), "{refused:?}");
    }
    let unasked = other.accept().unwrap_err();
    assert_eq!(unasked.kind(), ErrorKind::WouldBlock);
}
