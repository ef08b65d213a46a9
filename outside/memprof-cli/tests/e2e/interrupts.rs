//! memprof, ended or disturbed while it works on a process, which must be left as it was found.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::dist::dist;
use crate::memprof::memprof;
use crate::processes::{Process, compiled};

/// Longer than anything here takes on a busy machine.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(50);

fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.collect()
}

fn wait_until(event: &str, mut has_come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !has_come() {
        assert!(begun.elapsed() < EVENT_TIMEOUT, "{event}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Sends a signal to a process and its process group, as a terminal does.
fn send(leader: &Child, signal: Signal) {
    killpg(Pid::from_raw(leader.id().cast_signed()), signal).unwrap();
}

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(dist("bin/memprof"));
    command.args(args).process_group(0).stdin(Stdio::null());
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn ended_while_it_has_a_copy_leaves_no_zombie() {
    let source = "../../../memprof-leaks/tests/processes/planted.c";
    let (_place, program) = compiled("cc", source, &["-O1", "-pthread"]);
    let mut target = Process::start(Command::new(program), &["leaks"]);
    let pid = target.pid.to_string();
    let signals = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGKILL,
    ];
    for command in [&["leaks", "--prove"][..], &["holders"]] {
        let args = [command, &[&pid, "--max-pause", "5s"]].concat();
        for signal in signals {
            let mut met = false;
            wait_until("no copy was met", || {
                let mut memprof = start(&args);
                while !met && memprof.try_wait().unwrap().is_none() {
                    met = !children(target.pid).is_empty();
                }
                // It may have ended.
                send(&memprof, signal);
                memprof.wait().unwrap();
                met
            });
            let event = format!("{command:?} left a child behind on {signal}");
            wait_until(&event, || children(target.pid).is_empty());
            target.is_unharmed();
        }
    }
}

#[test]
fn stopped_while_it_is_copied_has_no_zombie_afterwards() {
    const TIMES: usize = 30;
    let source = "../../../memprof-leaks/tests/processes/planted.c";
    let (_place, program) = compiled("cc", source, &["-O1", "-pthread"]);
    let mut target = Process::start(Command::new(program), &["leaks"]);
    let pid = target.pid.to_string();
    let is_done = AtomicBool::new(false);
    let runs: Vec<_> = thread::scope(|scope| {
        scope.spawn(|| {
            let pauses = (0..20).cycle().map(Duration::from_millis);
            for pause in pauses.take_while(|_| !is_done.load(Ordering::Relaxed)) {
                target.signal(Signal::SIGSTOP);
                thread::sleep(pause / 2);
                target.signal(Signal::SIGCONT);
                thread::sleep(pause);
            }
        });
        let run = |_| memprof(Path::new("/"), &["holders", &pid, "--max-pause", "5s"]);
        let runs = (0..TIMES).map(run).collect();
        is_done.store(true, Ordering::Relaxed);
        runs
    });
    for run in runs {
        // It may be refused because it is stopped.
        assert!(!run.stderr.contains("RLIMIT_NPROC"), "{run:?}");
    }
    wait_until("a zombie stays", || children(target.pid).is_empty());
    target.is_unharmed();
}
