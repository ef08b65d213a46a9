//! memprof, ended or disturbed while it works on a process, which must be left as it was found.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use testkit::processes::children;

use crate::dist::dist;
use crate::memprof::memprof;
use crate::processes::{Process, compiled};

/// Longer than anything here takes on a busy machine.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(50);

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
fn memprof_ended_with_a_copy_leaves_no_zombie() {
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
                    met = !children(target.pid).unwrap().is_empty();
                }
                // It may have ended.
                send(&memprof, signal);
                memprof.wait().unwrap();
                met
            });
            let event = format!("{command:?} left a child behind on {signal}");
            wait_until(&event, || children(target.pid).unwrap().is_empty());
            target.is_unharmed();
        }
    }
}

/// Leaks in Python: `malloc` returns pointers that are cut to 32 bits.
const LEAKS: &str =
    "import ctypes, os\nlibc = ctypes.CDLL(None)\nfor _ in range(50): libc.malloc(1000)\n";

#[test]
fn process_that_ends_or_executes_while_searched_is_named() {
    let check = |script: &str, code: i32, words: &str| {
        // Of a program that has leaked something there are two snapshots.
        let script = format!("{LEAKS}os.read(0, 1)\n{script}");
        let mut target = Command::new("/usr/bin/python3");
        let target = target.args(["-c", &script]).stdin(Stdio::piped());
        let mut target = target.spawn().unwrap();
        let syscall = format!("/proc/{}/syscall", target.id());
        wait_until("the program does not read", || {
            let syscall = fs::read_to_string(&syscall).unwrap();
            syscall.starts_with("0 0x0 ")
        });
        let mut memprof = Command::new(dist("bin/memprof"));
        memprof.args(["leaks", "--prove", &target.id().to_string()]);
        memprof.args(["--max-pause", "5s"]).stdin(Stdio::null());
        let memprof = memprof.stdout(Stdio::piped()).stderr(Stdio::piped());
        let memprof = memprof.spawn().unwrap();
        // Of the first of two snapshots.
        wait_until("no copy was met", || {
            !children(target.id()).unwrap().is_empty()
        });
        target.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        let output = memprof.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{script}: {stderr}");
        assert!(stderr.contains(words), "{script}: {stderr}");
        target.kill().unwrap();
        target.wait().unwrap();
    };
    check("", 3, "has ended meanwhile");
    check("os.kill(os.getpid(), 9)", 3, "has ended meanwhile");
    let executed = "has executed another program meanwhile; try again";
    check("os.execvp('sleep', ['sleep', '1000'])", 4, executed);
}

#[test]
fn process_stopped_while_copied_has_no_zombie_afterwards() {
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
    wait_until("a zombie stays", || {
        children(target.pid).unwrap().is_empty()
    });
    target.is_unharmed();
}

/// Runs a shell that writes its pid, then waits in another process, and is searched for leaks when it exits.
fn start_at_exit(trap: &str, place: &Path) -> Child {
    let script = format!("{trap}; echo $$ > new; mv new pid; sleep 1000; true");
    // Signals have their default actions, whatever started this test.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP"]);
    command.arg(dist("bin/memprof"));
    command.args(["leaks", "--prove", "--at-exit", "--", "sh", "-c", &script]);
    let stderr = File::create(place.join("stderr")).unwrap();
    command.current_dir(place).stderr(stderr);
    command.spawn().unwrap()
}

#[test]
fn signals_reach_a_command_searched_at_exit() {
    let check = |trap: &str, signal: Signal, code: i32, words: &str| {
        let place = tempfile::tempdir().unwrap();
        let mut memprof = start_at_exit(trap, place.path());
        let mut pid = String::new();
        wait_until("the command did not start", || {
            assert!(memprof.try_wait().unwrap().is_none());
            pid = fs::read_to_string(place.path().join("pid")).unwrap_or_default();
            !pid.is_empty()
        });
        let shell: u32 = pid.trim().parse().unwrap();
        // The shell's first child is mv; a signal before sleep(1) may take effect only after it.
        let mut sleep = None;
        wait_until("the command does not wait", || {
            let is_sleep = |pid: &u32| {
                let name = fs::read_to_string(format!("/proc/{pid}/comm"));
                name.is_ok_and(|name| name == "sleep\n")
            };
            sleep = children(shell).unwrap().into_iter().find(is_sleep);
            sleep.is_some()
        });
        kill(Pid::from_raw(memprof.id().cast_signed()), signal).unwrap();
        let status = memprof.wait().unwrap();
        let text = fs::read_to_string(place.path().join("stderr")).unwrap();
        assert_eq!(status.code(), Some(code), "{signal}: {text}");
        assert!(text.contains(words), "{signal}: {text}");
        for pid in [Some(shell), sleep].into_iter().flatten() {
            let exists = || Path::new(&format!("/proc/{pid}")).exists();
            wait_until("a process is left", || !exists());
        }
    };
    let ended = "not searched for leaks: a signal ended the command";
    check("true", Signal::SIGTERM, 143, ended);
    check("true", Signal::SIGHUP, 129, ended);
    check("true", Signal::SIGINT, 130, ended);
    check(
        "trap 'exit 7' TERM",
        Signal::SIGTERM,
        7,
        "nothing is leaked",
    );
    check("trap 'exit 0' HUP", Signal::SIGHUP, 0, "nothing is leaked");
}
