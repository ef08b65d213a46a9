//! `memprof attach`: programs in which a name resolves to another function than usual, or whose threads are not the C library's.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::attach::{attach, detach};
use crate::fixture::{build, serves, start};
use crate::memprof::memprof;
use crate::root::skip_without_root;

fn program() -> &'static str {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| build("strange.c", &[]));
    program.to_str().unwrap()
}

/// Does what the program cannot bear where a function is called by its name alone.
#[test]
fn functions_of_the_library_of_the_thread_are_called() {
    let check = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let mut host = start(command);
        for _ in 0..3 {
            attach(&host, &[]).exits(0);
            serves(&mut host, "attached");
            host.memprof("activate", &["sample_interval=1KiB"]).exits(0);
            detach(&host, &[]).exits(0);
            serves(&mut host, "detached");
        }
    };
    let program = program();
    check(&[program, "nothing"]);
    check(&[program, "data"]);
    check(&[program, "data above"]);
    check(&[program, "code"]);
    check(&[program, "copy"]);
    check(&[program, "namespaces"]);
    check(&[program, "thread without variables"]);
    check(&[program, "thread with other variables"]);
    check(&[program, "thread like the C library's"]);
    let loader = "/lib64/ld-linux-x86-64.so.2";
    check(&[loader, program, "data"]);
    let (_place, fixed) = build("strange.c", &["-no-pie"]);
    check(&[fixed.to_str().unwrap(), "data"]);
}

/// The thread that loads the plugin inherits what its creator may not do, and so does one of a forked child.
#[test]
fn program_that_forbids_instructions_or_memory_is_unharmed() {
    for what in [
        "no cpuid",
        "no rdtsc",
        "neither",
        "heap with key",
        "heap with closed key",
        "stack with key",
        "library with key",
    ] {
        let mut command = Command::new(program());
        command.arg(what);
        let mut host = start(command);
        let pid = host.pid().to_string();
        for command in [&["leaks", "--prove"][..], &["holders"], &["ledger"]] {
            memprof(&host.socket_dir(), &[command, &[&pid]].concat());
            serves(&mut host, command[0]);
        }
        for _ in 0..2 {
            attach(&host, &["--children"]).exits(0);
            host.memprof("activate", &["sample_interval=1KiB"]).exits(0);
            serves(&mut host, "allocate");
            serves(&mut host, "fork");
            host.memprof("dump", &[]).exits(0);
            host.memprof("status", &[]).exits(0);
            detach(&host, &[]).exits(0);
            serves(&mut host, "detached");
        }
    }
}

/// The C library jumps to the vDSO to read a clock.
#[test]
fn program_without_vdso_is_refused_and_unharmed() {
    let mut command = Command::new(program());
    command.arg("no vdso");
    let mut host = start(command);
    let refused = attach(&host, &[]).exits(4);
    let words = "has unmapped its vDSO";
    assert!(refused.stderr.contains(words), "{refused:?}");
    serves(&mut host, "refused");
}

/// Its default action would end the program once a thread does not block it.
#[test]
fn program_with_pending_fault_is_refused_and_unharmed() {
    for what in ["pending fault", "pending fault of thread"] {
        let mut command = Command::new(program());
        command.arg(what);
        let mut host = start(command);
        let refused = attach(&host, &[]).exits(4);
        let words = "a signal of a fault is pending";
        assert!(refused.stderr.contains(words), "{what}: {refused:?}");
        serves(&mut host, "refused");
    }
}

#[test]
fn program_with_user_dispatch_is_refused_and_unharmed() {
    let mut command = Command::new(program());
    command.arg("dispatch");
    let mut host = start(command);
    let pid = host.pid().to_string();
    let words = "handles system calls itself (syscall user dispatch, as Wine does)";
    let refused = attach(&host, &[]).exits(4);
    assert!(refused.stderr.contains(words), "{refused:?}");
    for command in [&["leaks", "--prove"][..], &["holders"]] {
        let args = [command, &[&pid]].concat();
        let refused = memprof(&host.socket_dir(), &args).exits(4);
        assert!(!refused.stderr.is_empty(), "{refused:?}");
        serves(&mut host, command[0]);
    }
}

/// A copy of it, or a thread that fails, would be the first process of the namespace, and end it.
#[test]
fn program_with_another_namespace_for_children_is_refused_and_can_fork() {
    if skip_without_root("program_with_another_namespace_for_children_is_refused_and_can_fork") {
        return;
    }
    for command in [
        &["attach"][..],
        &["leaks", "--prove"],
        &["holders"],
        &["record", "--for", "1s"],
    ] {
        let mut program = Command::new(program());
        program.arg("child namespace");
        let mut host = start(program);
        let pid = host.pid().to_string();
        let args = [command, &[&pid]].concat();
        let refused = memprof(&host.socket_dir(), &args).exits(4);
        let words = "makes its children in another pid namespace";
        assert!(refused.stderr.contains(words), "{refused:?}");
        serves(&mut host, "fork");
    }
    for command in [&["leaks", "--prove"][..], &["holders"]] {
        let mut program = Command::new(program());
        program.arg("child time namespace");
        let mut host = start(program);
        let pid = host.pid().to_string();
        let refused = memprof(&host.socket_dir(), &[command, &[&pid]].concat()).exits(4);
        let words = "makes its children in another time namespace";
        assert!(refused.stderr.contains(words), "{refused:?}");
        serves(&mut host, "clock");
    }
    // What a ledger shows without a copy of the process is enough.
    let mut command = Command::new(program());
    command.arg("child namespace");
    let mut host = start(command);
    let pid = host.pid().to_string();
    memprof(&host.socket_dir(), &["ledger", &pid]).exits(0);
    serves(&mut host, "fork");
}

#[test]
fn program_with_thread_sanitizer_is_refused_and_unharmed() {
    let check = |options: &[&str]| {
        let (_place, program) = build("strange.c", options);
        let mut host = start(Command::new(program));
        let refused = attach(&host, &[]).exits(4);
        let words = "was built with ThreadSanitizer";
        assert!(refused.stderr.contains(words), "{refused:?}");
        serves(&mut host, "refused");
    };
    check(&["-fsanitize=thread"]);
    check(&["-fsanitize=thread", "-static-libtsan"]);
}

/// A quadratic comparison of mappings takes minutes here, as `detach` once did.
#[test]
fn program_at_the_mapping_limit_is_detached() {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: u32 = limit.trim().parse().unwrap();
    let check = |allocator: &[&str]| {
        let (_place, program) = build("many_mappings.c", allocator);
        let mut command = Command::new(program);
        command.arg((limit.min(65_530) - 300).to_string());
        let mut host = start(command);
        attach(&host, &["--max-pause=10s"]).exits(0);
        host.memprof("activate", &[]).exits(0);
        serves(&mut host, "attached");
        detach(&host, &[]).exits(0);
        serves(&mut host, "detached");
    };
    check(&[]);
    check(&["-l:libjemalloc.a", "-lstdc++", "-lm"]);
}
