//! What `memprof attach` leaves alone: each refusal in its words and with its exit code, and the process
//! lives on as before.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memprof_ptrace::seccomp::{BpfInstruction, Rseq, forbidden_call};
use nix::errno::Errno;
use nix::sys::signal::Signal;

use crate::curl::as_user;
use crate::host::TEST_TIMEOUT;
use crate::memprof::{Run, memprof};
use crate::processes::{NOBODY, Process, compiled, memprof_as_nobody};
use crate::root::skip_without_root;

const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// Runs `memprof attach` with a directory of sockets that is empty.
fn attach(pid: u32) -> Run {
    let nowhere = tempfile::tempdir().unwrap();
    memprof(nowhere.path(), &["attach", &pid.to_string()])
}

fn comm(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    name.trim_end().to_owned()
}

/// Checks that a run ended with `code`, and that its error has these words about the process, before any remedy.
fn is_refused(run: Run, pid: u32, words: &str, code: i32) {
    let words = words.replace("PID", &pid.to_string());
    let expected = format!("memprof: {pid} ({}): {words}", comm(pid));
    let said = run.exits(code).stderr;
    let rest = said.strip_prefix(&expected);
    let rest = rest.unwrap_or_else(|| panic!("{expected}\n{said}"));
    assert!(rest == "\n" || rest.starts_with("; "), "{said}");
}

/// Starts a process of target.c in a state, and checks that it is refused.
fn check(state: &[&str], words: &str, code: i32) -> Process {
    let (_place, program) = compiled("cc", "target.c", &["-pthread"]);
    let mut process = Process::start(Command::new(program), state);
    is_refused(attach(process.pid), process.pid, words, code);
    if state != ["vfork"] {
        process.is_unharmed();
    }
    process
}

fn filter(call: libc::c_long, answer: u32) -> [String; 3] {
    ["filter".to_owned(), call.to_string(), answer.to_string()]
}

#[test]
fn numbers_of_no_process_are_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let said = attach(child.id()).exits(3).stderr;
    let words = format!(
        "memprof: {}: no such process; `memprof ps --all`",
        child.id()
    );
    assert!(said.starts_with(&words), "{said}");
    if comm(2) == "kthreadd" {
        is_refused(attach(2), 2, "is a kernel thread", 4);
    }
}

#[test]
fn processes_in_unsuitable_states_are_refused() {
    check(&["zombie"], "has ended (zombie)", 3);
    check(
        &["strict"],
        "is in seccomp's strict mode, which forbids clone3",
        4,
    );
    let words = "its main thread has ended, so /proc shows nothing of the process";
    check(&["main-thread-ends"], words, 4);
}

#[test]
fn process_between_vfork_and_exec_is_refused() {
    let words = "is between vfork and exec and runs in its parent's memory";
    let mut process = check(&["vfork"], words, 4);
    process.type_line("");
    assert_eq!(process.line(), "the child has executed a program\n");
    process.is_unharmed();
}

#[test]
fn uninterruptible_thread_is_skipped() {
    let (_place, program) = compiled("cc", "target.c", &["-pthread"]);
    let mut process = Process::start(Command::new(program), &["vfork"]);
    let parent = process.started();
    // Until its child executes a program.
    let state = || {
        let status = std::fs::read_to_string(format!("/proc/{parent}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("State:"));
        line.unwrap().to_owned()
    };
    assert!(state().contains("D (disk sleep)"), "{}", state());
    let begun = Instant::now();
    let words = "no thread came to a safe point in time: no thread waits in a system call that it could make again";
    is_refused(attach(parent), parent, words, 4);
    assert!(begun.elapsed() < TEST_TIMEOUT / 4, "{:?}", begun.elapsed());
    assert!(state().contains("D (disk sleep)"), "{}", state());
    process.type_line("");
    assert_eq!(process.line(), "the child has executed a program\n");
    process.is_unharmed();
}

#[test]
fn stopped_process_is_refused() {
    let (_place, program) = compiled("cc", "echo.c", &[]);
    let mut process = Process::start(Command::new(program), &[]);
    process.signal(Signal::SIGSTOP);
    let status = format!("/proc/{}/status", process.pid);
    while !std::fs::read_to_string(&status)
        .unwrap()
        .contains("T (stopped)")
    {
        testkit::pause();
    }
    let words = "process is stopped; continue it first (kill -CONT PID)";
    is_refused(attach(process.pid), process.pid, words, 4);
    process.signal(Signal::SIGCONT);
    process.is_unharmed();
}

#[test]
fn traced_process_is_refused() {
    let (place, program) = compiled("cc", "echo.c", &[]);
    let mut process = Process::start(Command::new(program), &[]);
    let trace = place.path().join("trace");
    let mut strace = Command::new("strace");
    strace
        .arg("-o")
        .arg(trace)
        .args(["-p", &process.pid.to_string()]);
    let mut strace = strace.spawn().unwrap();
    let tracer = format!("TracerPid:\t{}\n", strace.id());
    let status = format!("/proc/{}/status", process.pid);
    while !std::fs::read_to_string(&status).unwrap().contains(&tracer) {
        assert!(strace.try_wait().unwrap().is_none());
        testkit::pause();
    }
    let words = format!(
        "process {} already traces PID (a debugger, strace?); only one can",
        strace.id()
    );
    is_refused(attach(process.pid), process.pid, &words, 4);
    process.is_unharmed();
    strace.kill().unwrap();
    strace.wait().unwrap();
    process.is_unharmed();
}

#[test]
fn programs_without_dynamic_loading_are_refused() {
    let of = |compiler: &str, source: &str, options: &[&str], words: &str| {
        let (_place, program) = compiled(compiler, source, options);
        let mut process = Process::start(Command::new(program), &[]);
        is_refused(attach(process.pid), process.pid, words, 4);
        process.is_unharmed();
    };
    let words = "is linked statically: nothing in it can load a library";
    of("cc", "echo.c", &["-static"], words);
    of("cc", "echo.c", &["-static-pie"], words);
    of("musl-gcc", "echo.c", &[], "uses musl");
}

#[test]
fn libc_mapped_as_data_is_not_called() {
    let options = ["-shared", "-fPIC", "-D_GNU_SOURCE"];
    let (_place, library) = compiled("cc", "maps_libc.c", &options);
    let (_place, program) = compiled("cc", "echo.c", &[]);
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", &library);
    let mut process = Process::start(command, &[]);
    attach(process.pid).exits(0);
    process.is_unharmed();
}

#[test]
fn malloc_with_8_byte_alignment_is_refused() {
    let check = |way: &str| {
        let (_place, library) = compiled("cc", "align8.c", &["-shared", "-fPIC", way]);
        let (_place, program) = compiled("cc", "echo.c", &[]);
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", &library);
        let mut process = Process::start(command, &[]);
        let words = "its malloc (target) does not align to 16 bytes as the C ABI requires, so a library could crash in it";
        is_refused(attach(process.pid), process.pid, words, 4);
        process.is_unharmed();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid)).unwrap();
        assert!(!maps.contains("memory_profile.so"), "{maps}");
    };
    ["-DBEHIND", "-DHEADERS", "-DCLASSES"]
        .into_iter()
        .for_each(check);
}

#[test]
fn go_program_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("target");
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(&program)
        .env("CGO_ENABLED", "0");
    go.arg(crate::dist::source(
        "outside/memprof-ptrace/tests/processes/target.go",
    ));
    go.env("GOCACHE", place.path().join("cache"));
    crate::dist::tool_text("golang-go", &mut go);
    let mut process = Process::start(Command::new(program), &[]);
    let words = "is linked statically: nothing in it can load a library";
    is_refused(attach(process.pid), process.pid, words, 4);
    process.is_unharmed();
}

#[test]
fn harmful_seccomp_filters_are_refused() {
    if skip_without_root("refusals::harmful_seccomp_filters_are_refused") {
        return;
    }
    let forbidden = |call: libc::c_long, answer: u32, name: &str| {
        let words = format!("its seccomp filter forbids {name}");
        let state = filter(call, answer);
        check(&state.each_ref().map(String::as_str), &words, 4);
    };
    let errno = |errno: Errno| libc::SECCOMP_RET_ERRNO | errno as u32;
    forbidden(libc::SYS_clone3, KILL, "clone3");
    forbidden(libc::SYS_clone3, errno(Errno::EPERM), "clone3");
    forbidden(libc::SYS_clone3, libc::SECCOMP_RET_TRAP, "clone3");
    // glibc would end the process: "Fatal glibc error: rseq registration failed".
    forbidden(libc::SYS_rseq, errno(Errno::EPERM), "rseq");
    forbidden(libc::SYS_openat, KILL, "openat");
    forbidden(libc::SYS_socket, errno(Errno::EACCES), "socket");
    let sleep = libc::SYS_clock_nanosleep;
    forbidden(sleep, errno(Errno::EPERM), "clock_nanosleep");
}

#[test]
fn sufficient_seccomp_filters_are_accepted() {
    if skip_without_root("refusals::sufficient_seccomp_filters_are_accepted") {
        return;
    }
    let (_place, program) = compiled("cc", "target.c", &["-pthread"]);
    let allowed = |call: libc::c_long, answer: u32| {
        let state = filter(call, answer);
        let state = state.each_ref().map(String::as_str);
        let mut process = Process::start(Command::new(&program), &state);
        attach(process.pid).exits(0);
        process.is_unharmed();
        let nowhere = tempfile::tempdir().unwrap();
        let pid = process.pid.to_string();
        memprof(nowhere.path(), &["activate", "-t", &pid]).exits(0);
        memprof(nowhere.path(), &["detach", &pid]).exits(0);
        process.is_unharmed();
    };
    let errno = |errno: Errno| libc::SECCOMP_RET_ERRNO | errno as u32;
    // glibc calls clone then, as under container runtimes that do not know clone3.
    allowed(libc::SYS_clone3, errno(Errno::ENOSYS));
    allowed(libc::SYS_prctl, errno(Errno::EPERM));
    allowed(libc::SYS_reboot, KILL);
}

/// Returns the numbers of the system calls for which attaching is refused if a filter returns `answer`.
fn needed(answer: u32) -> Vec<String> {
    let is_needed = |number: &u32| {
        let step = |code: u32, operand, if_false| BpfInstruction {
            code: code as u16,
            if_true: 0,
            if_false,
            operand,
        };
        let filter = vec![
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *number, 1),
            step(libc::BPF_RET | libc::BPF_K, answer, 0),
            step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        forbidden_call(&[filter], Rseq::Required).unwrap().is_some()
    };
    (0..512)
        .filter(is_needed)
        .map(|number| number.to_string())
        .collect()
}

/// The filter kills at all other calls, which shows that attaching makes only the calls that it checks.
#[test]
fn minimal_seccomp_filter_suffices() {
    if skip_without_root("refusals::minimal_seccomp_filter_suffices") {
        return;
    }
    let (_place, program) = compiled("cc", "target.c", &["-pthread"]);
    let only = |answer: u32, more: &[libc::c_long]| {
        let mut state = vec!["only".to_owned(), "-".to_owned(), answer.to_string()];
        state.extend(needed(answer));
        state.extend(more.iter().map(ToString::to_string));
        let state: Vec<_> = state.iter().map(String::as_str).collect();
        Process::start(Command::new(&program), &state)
    };
    let mut process = only(KILL, &[]);
    let nowhere = tempfile::tempdir().unwrap();
    let pid = process.pid.to_string();
    let run = |command: &[&str]| memprof(nowhere.path(), command);
    let dumps = format!("dump_dir={}", nowhere.path().join("dumps").display());
    run(&["attach", &pid, &dumps]).exits(0);
    process.is_unharmed();
    let messages = [
        "status",
        "activate",
        "stats",
        "ledger",
        "list",
        "doctor",
        "reset",
        "dump",
        "deactivate",
    ];
    for message in messages {
        run(&[message, "-t", &pid]).exits(0);
        process.is_unharmed();
    }
    run(&["detach", &pid]).exits(0);
    process.is_unharmed();
    // Where the rest fails, attaching may, but nothing else. The process itself writes.
    let errno = libc::SECCOMP_RET_ERRNO | Errno::EPERM as u32;
    let mut process = only(errno, &[libc::SYS_write]);
    let run = attach(process.pid);
    assert!(!run.stderr.contains("another program"), "{run:?}");
    process.is_unharmed();
}

#[test]
fn processes_of_other_users_are_refused() {
    if skip_without_root("refusals::processes_of_other_users_are_refused") {
        return;
    }
    let (place, program) = compiled("cc", "target.c", &["-pthread"]);
    let refused = |mut process: Process, words: &str, code: i32, remedy: &str| {
        let run = memprof_as_nobody(place.path(), &["attach", &process.pid.to_string()]);
        assert!(run.stderr.contains(remedy), "{run:?}");
        is_refused(run, process.pid, words, code);
        process.is_unharmed();
    };
    let of = |command: Command, words: &[&str]| Process::start(command, words);
    let own = || as_user(NOBODY, &program);
    let denied = "/proc/PID/mem: Permission denied";
    let roots = of(Command::new(&program), &["serve"]);
    refused(roots, denied, 3, "; run memprof as uid 0 or as root");
    let remedy = "; it lets no other process look into it (prctl PR_SET_DUMPABLE";
    refused(of(own(), &["undumpable"]), denied, 3, remedy);
    let state = filter(libc::SYS_clone3, KILL);
    let filtered = of(own(), &state.each_ref().map(String::as_str));
    let words = "its seccomp filter cannot be read by this user";
    refused(filtered, words, 4, "; run memprof as root");
}

/// Root of a user namespace has no rights outside of it.
#[test]
fn container_root_is_refused() {
    if skip_without_root("refusals::container_root_is_refused") {
        return;
    }
    let (_place, program) = compiled("cc", "target.c", &["-pthread"]);
    let mut process = Process::start(Command::new(&program), &["serve"]);
    let mut contained = Command::new("unshare");
    contained.args(["--user", "--map-root-user"]);
    contained.arg(crate::dist::dist("bin/memprof"));
    contained.args(["attach", &process.pid.to_string()]);
    let output = contained
        .env("MEMPROF_SOCKET_DIR", Path::new("/nonexistent"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let words = format!(
        "memprof: {} (target): /proc/{0}/mem: Permission denied; ",
        process.pid
    );
    assert!(said.starts_with(&words), "{said}");
    process.is_unharmed();
}
