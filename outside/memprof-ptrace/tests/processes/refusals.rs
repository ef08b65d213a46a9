//! Refusals of real processes, which keep running.

use std::path::{Path, PathBuf};
use std::process::Command;

use memprof_ptrace::{ExaminedProcess, Refusal, examine_process_for_load};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid};

use crate::target::{Target, built};

/// Examines a process that must be refused with this text and exit code.
fn assert_refused(target: &Target, words: &str, exit_code: u8) {
    let refusal = examine_process_for_load(target.pid).unwrap_err();
    let words = words.replace("PID", &target.pid.to_string());
    assert_eq!(refusal.to_string(), words, "{target:?}");
    assert_eq!(refusal.exit_code(), exit_code, "{refusal:?}");
}

fn assert_accepted(target: &Target) -> ExaminedProcess {
    examine_process_for_load(target.pid).unwrap_or_else(|refusal| panic!("{target:?}: {refusal:?}"))
}

#[test]
fn ordinary_process_is_accepted() {
    let mut target = Target::new(&["serve"]);
    let examined = assert_accepted(&target);
    assert_eq!(examined.pid, target.pid);
    assert!(examined.start_time > 0, "{examined:?}");
    assert!(examined.status.name.starts_with("target"), "{examined:?}");
    assert!(
        !examined.has_plugin && !examined.has_seccomp_filter(),
        "{examined:?}"
    );
    target.assert_unharmed();
}

#[test]
fn forked_process_without_exec_is_accepted() {
    let mut target = Target::new(&["fork"]);
    assert_accepted(&target);
    target.assert_unharmed();
}

#[test]
fn program_called_through_the_loader_is_accepted() {
    let mut command = Command::new("/lib64/ld-linux-x86-64.so.2");
    let mut target = Target::from_command(command.arg(echo("cc", &[])));
    assert_accepted(&target);
    target.assert_unharmed();
}

#[test]
fn process_with_removed_file_is_accepted() {
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join("removed");
    std::fs::copy(echo("cc", &[]), &copy).unwrap();
    let mut target = Target::from_command(&mut Command::new(&copy));
    place.close().unwrap();
    assert_accepted(&target);
    target.assert_unharmed();
}

#[test]
fn missing_process_is_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    assert_eq!(
        examine_process_for_load(pid).unwrap_err(),
        Refusal::NoSuchProcess
    );
}

#[test]
fn thread_is_refused() {
    let target = Target::new(&["main-thread-ends"]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid)).unwrap();
    let names = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let threads = names.map(|name| name.parse::<u32>().unwrap());
    let thread = threads.max().unwrap();
    let process = target.pid;
    assert_eq!(
        examine_process_for_load(thread).unwrap_err(),
        Refusal::Thread { process }
    );
}

#[test]
fn process_without_main_thread_is_refused() {
    let mut target = Target::new(&["main-thread-ends"]);
    let words = "its main thread has ended, so /proc shows nothing of the process";
    assert_refused(&target, words, 4);
    target.assert_unharmed();
}

#[test]
fn zombie_is_refused() {
    let mut target = Target::new(&["zombie"]);
    assert_refused(&target, "has ended (zombie)", 3);
    target.assert_unharmed();
}

#[test]
fn kernel_thread_is_refused() {
    let comm = std::fs::read_to_string("/proc/2/comm");
    // A container shows no kernel threads.
    if comm.is_ok_and(|name| name == "kthreadd\n") {
        let refusal = examine_process_for_load(2).unwrap_err();
        assert_eq!(refusal.to_string(), "is a kernel thread");
        assert_eq!(refusal.exit_code(), 4);
    } else {
        assert_ne!(
            examine_process_for_load(1).err(),
            Some(Refusal::KernelThread)
        );
    }
}

#[test]
fn stopped_process_is_refused() {
    let mut target = Target::new(&["serve"]);
    target.signal(Signal::SIGSTOP);
    let pid = Pid::from_raw(target.pid.cast_signed());
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    let words = "process is stopped; continue it first (kill -CONT PID)";
    assert_refused(&target, words, 4);
    target.signal(Signal::SIGCONT);
    target.assert_unharmed();
    assert_accepted(&target);
}

#[test]
fn traced_process_is_refused() {
    let mut target = Target::new(&["serve"]);
    let pid = Pid::from_raw(target.pid.cast_signed());
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    let words = format!(
        "process {} already traces PID (a debugger, strace?); only one can",
        std::process::id()
    );
    assert_refused(&target, &words, 4);
    target.assert_unharmed();
    // Also while the tracer has stopped it.
    ptrace::interrupt(pid).unwrap();
    waitpid(pid, None).unwrap();
    assert_refused(&target, &words, 4);
    ptrace::detach(pid, None).unwrap();
    target.assert_unharmed();
    assert_accepted(&target);
}

/// A cgroup for one test, removed when dropped.
struct Cgroup {
    place: PathBuf,
    /// Texts to write in order to freeze and to thaw.
    switch: (&'static str, [&'static str; 2]),
}

impl Cgroup {
    /// Creates it below a mount point of cgroups. `None` if this process may not.
    fn new(mount: &str, switch: (&'static str, [&'static str; 2])) -> Option<Self> {
        let place = Path::new(mount).join(format!("memprof-{}", std::process::id()));
        std::fs::create_dir(&place).ok()?;
        place
            .join(switch.0)
            .exists()
            .then_some(Self { place, switch })
    }

    /// Freezes it until the guard is dropped: a frozen process cannot be killed.
    fn freeze(&self) -> Frozen<'_> {
        let (file, [freeze, _]) = self.switch;
        std::fs::write(self.place.join(file), freeze).unwrap();
        Frozen(self)
    }
}

struct Frozen<'a>(&'a Cgroup);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let (file, [_, thaw]) = self.0.switch;
        std::fs::write(self.0.place.join(file), thaw).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.place).unwrap();
    }
}

#[test]
fn frozen_process_is_refused() {
    let unified = ("cgroup.freeze", ["1", "0"]);
    let legacy = ("freezer.state", ["FROZEN", "THAWED"]);
    let cgroups = [
        ("/sys/fs/cgroup", unified),
        ("/sys/fs/cgroup/unified", unified),
        ("/sys/fs/cgroup/freezer", legacy),
    ];
    let cgroups: Vec<_> = cgroups
        .into_iter()
        .filter_map(|(mount, switch)| Cgroup::new(mount, switch))
        .collect();
    for cgroup in &cgroups {
        let mut target = Target::new(&["serve"]);
        std::fs::write(cgroup.place.join("cgroup.procs"), target.pid.to_string()).unwrap();
        let frozen = cgroup.freeze();
        let words = "is frozen by its cgroup; thaw it first (docker unpause, systemctl thaw)";
        while examine_process_for_load(target.pid).is_ok() {
            // The kernel reports the state once the last thread is stopped.
            std::thread::yield_now();
        }
        assert_refused(&target, words, 4);
        drop(frozen);
        target.assert_unharmed();
        while examine_process_for_load(target.pid).is_err() {
            std::thread::yield_now();
        }
    }
    // Users other than root, and containers, may not create cgroups.
    if cgroups.is_empty() {
        println!("no cgroup could be made: nothing was frozen");
    }
}

#[test]
fn process_between_vfork_and_exec_is_refused() {
    let mut target = Target::new(&["vfork"]);
    assert_refused(
        &target,
        "is between vfork and exec and runs in its parent's memory",
        4,
    );
    target.write(b"\n");
    assert_eq!(target.line(), "the child has executed a program\n");
    target.assert_unharmed();
}

#[test]
fn programs_without_a_loader_are_refused() {
    let words = "is linked statically: nothing in it can load a library";
    for option in ["-static", "-static-pie"] {
        let mut target = Target::from_command(&mut Command::new(echo("cc", &[option])));
        assert_refused(&target, words, 4);
        target.assert_unharmed();
    }
    let mut go = Target::from_command(&mut Command::new(go_program()));
    assert_refused(&go, words, 4);
    go.assert_unharmed();
}

/// A program in Go, which has its own linker and no C library.
fn go_program() -> PathBuf {
    built("target-go", |path| {
        let mut command = Command::new("go");
        command.args(["build", "-o"]).arg(path).arg("target.go");
        command
            .env("CGO_ENABLED", "0")
            .env("GOCACHE", path.with_file_name("cache"));
        command
    })
}

/// The compiled echo.c.
fn echo(compiler: &str, options: &[&str]) -> PathBuf {
    built(&format!("{compiler}{}", options.concat()), |path| {
        let mut command = Command::new(compiler);
        command.args(options).arg("echo.c").arg("-o").arg(path);
        command
    })
}

#[test]
fn program_for_musl_is_refused() {
    let mut target = Target::from_command(&mut Command::new(echo("musl-gcc", &[])));
    assert_refused(&target, "uses musl", 4);
    target.assert_unharmed();
}

#[test]
fn program_of_32_bits_is_refused() {
    let object = built("i386.o", |path| {
        let mut command = Command::new("as");
        command.args(["--32", "i386.s", "-o"]).arg(path);
        command
    });
    let program = built("i386", |path| {
        let mut command = Command::new("ld");
        command.args(["-m", "elf_i386", "-o"]).arg(path).arg(object);
        command
    });
    let mut target = Target::from_command(&mut Command::new(program));
    assert_refused(&target, "is a program for i386", 4);
    target.assert_unharmed();
}

#[test]
fn strict_seccomp_is_refused() {
    let mut target = Target::new(&["strict"]);
    assert_refused(
        &target,
        "is in seccomp's strict mode, which forbids clone3",
        4,
    );
    target.assert_unharmed();
}

#[test]
fn filtered_process_is_refused_without_root() {
    let kill = libc::SECCOMP_RET_KILL_PROCESS.to_string();
    let call = libc::SYS_clone3.to_string();
    let mut target = Target::new(&["filter", &call, &kill]);
    if geteuid().is_root() {
        assert!(assert_accepted(&target).has_seccomp_filter());
    } else {
        assert_refused(&target, "its seccomp filter cannot be read by this user", 4);
    }
    target.assert_unharmed();
    // One thread without a filter suffices.
    let mut target = Target::new(&["filtered-thread", &call, &kill]);
    assert!(!assert_accepted(&target).has_seccomp_filter());
    target.assert_unharmed();
}
