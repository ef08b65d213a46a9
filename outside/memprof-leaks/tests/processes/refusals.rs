//! Refused analyses, which leave the process unharmed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memprof_leaks::{AnalysisOptions, Error, UnsearchedAmount, UnsearchedRole, prove_leaks};
use memprof_ptrace::stop::StoppedThread;

use crate::leaks::{JEMALLOC, LONG_PAUSE};
use crate::snapshots::children;
use crate::target::{Target, built};
use crate::{compiled, start};

/// Error of an analysis that is refused. The process runs on, and has no children.
fn refusal_of(target: &mut Target, options: AnalysisOptions) -> Error {
    let error = prove_leaks(target.pid, options, &|_| {}).unwrap_err();
    target.assert_unharmed();
    assert_eq!(children(target.pid), "", "{error}");
    error
}

#[test]
fn pause_beyond_limit_is_refused() {
    let options = AnalysisOptions {
        max_pause: Duration::from_micros(10),
        ..LONG_PAUSE
    };
    let error = refusal_of(&mut start("planted", &["clean"]), options);
    assert!(matches!(error, Error::LongPause { .. }), "{error}");
    let remedy = error.remedy().unwrap();
    assert!(remedy.starts_with("allow it by --max-pause "), "{remedy}");
    assert_eq!(error.exit_code(), 4);
}

#[test]
fn memory_beyond_limit_is_refused() {
    let options = AnalysisOptions {
        max_memory: Some(100 << 10),
        ..LONG_PAUSE
    };
    let error = refusal_of(&mut start("planted", &["clean"]), options);
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    let remedy = error.remedy().unwrap();
    assert!(remedy.starts_with("allow it by --max-memory "), "{remedy}");
    assert_eq!(error.exit_code(), 4);
}

#[test]
fn seccomp_filter_against_clone_is_refused() {
    for mode in ["kills", "refuses"] {
        let error = refusal_of(&mut start("planted", &[mode]), LONG_PAUSE);
        assert_eq!(error.to_string(), "its seccomp filter forbids clone");
        assert_eq!(error.exit_code(), 4);
    }
}

#[test]
fn traced_process_is_refused() {
    let mut target = start("planted", &["clean"]);
    let tracing = StoppedThread::stop(target.pid).unwrap();
    let error = prove_leaks(target.pid, LONG_PAUSE, &|_| {})
        .unwrap_err()
        .to_string();
    let tracer = format!("process {} already traces", std::process::id());
    assert!(error.starts_with(&tracer), "{error}");
    drop(tracing);
    prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
}

#[test]
fn program_of_other_architecture_is_refused() {
    let source = "../../../memprof-ptrace/tests/processes/i386.s";
    let object = built("i386.o", |path| {
        let mut command = Command::new("as");
        command.args(["--32", source, "-o"]).arg(path);
        command
    });
    let program = built("i386", |path| {
        let mut command = Command::new("ld");
        command.args(["-m", "elf_i386", "-o"]).arg(path).arg(object);
        command
    });
    let error = refusal_of(
        &mut Target::from_command(&mut Command::new(program)),
        LONG_PAUSE,
    );
    assert_eq!(error.to_string(), "is a program for i386");
}

/// The libraries have the names in their packages.
#[test]
fn unsupported_allocators_are_named() {
    for library in ["libtcmalloc_minimal.so.4", "libmimalloc.so.2.0"] {
        let mut command = Command::new(compiled("planted"));
        let mut target = Target::from_command(command.arg("clean").env("LD_PRELOAD", library));
        let error = refusal_of(&mut target, LONG_PAUSE).to_string();
        let expected = format!("its malloc is that of {library}");
        assert!(error.contains(&expected), "{error}");
        assert!(
            error.ends_with(", whose heap memprof cannot read"),
            "{error}"
        );
    }
}

/// No name of a library shows it: the program has a `malloc` of its own.
#[test]
fn malloc_of_program_s_own_is_named() {
    let error = refusal_of(&mut start("own_malloc", &[]), LONG_PAUSE).to_string();
    assert!(
        error.ends_with("its malloc is that of own_malloc, whose heap memprof cannot read"),
        "{error}"
    );
}

/// Rust's `#[global_allocator]` over memory of its own, beside the heap of glibc that C code uses.
#[test]
fn global_allocator_in_rust_is_noted_unless_it_calls_malloc() {
    for (mode, expected) in [("own_memory", 1), ("system", 0)] {
        let program = built(&format!("global_allocator_{mode}"), |path| {
            let mut command = Command::new("rustc");
            command.args([
                "-O",
                "--edition",
                "2024",
                "global_allocator.rs",
                "--cfg",
                mode,
                "-o",
            ]);
            command.arg(path);
            command
        });
        let mut target = Target::from_command(&mut Command::new(program));
        let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
        target.assert_unharmed();
        let parts = &proof.report.unsearched;
        assert_eq!(parts.len(), expected, "{mode}: {parts:?}");
        assert!(
            parts
                .iter()
                .all(|part| part.what.contains("a global allocator in Rust in /")
                    && part.role == UnsearchedRole::Objects
                    && part.amount > Some(UnsearchedAmount::Bytes(300 << 10))),
            "{parts:?}"
        );
    }
}

/// In gnuplot, for example, the C library is the 72nd of 82 objects by address.
#[test]
fn c_library_after_many_libraries_is_found() {
    let library = built("many_code.so", |path| {
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        command.args(["many_code.c", "-o"]).arg(path);
        command
    });
    let mut command = Command::new(compiled("planted"));
    let mut target = Target::from_command(command.arg("clean").env("LD_PRELOAD", library));
    prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
}

#[test]
fn other_c_library_is_refused() {
    let program = built("with_musl", |path| {
        let mut command = Command::new("musl-gcc");
        command.args(["-O1", "-static", "quiet.c", "-o"]).arg(path);
        command
    });
    let error = refusal_of(
        &mut Target::from_command(&mut Command::new(program)),
        LONG_PAUSE,
    );
    let words = "memprof does not know the signal return code of its C library";
    assert!(error.to_string().ends_with(words), "{error}");
}

#[test]
fn program_without_a_heap_has_no_leaks() {
    let mut target = start("quiet", &[]);
    let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    assert_eq!((proof.report.objects, proof.leaked.len()), (0, 0));
    assert_eq!(proof.report.allocators, [""; 0]);
}

/// Even a supported jemalloc is not walked if it has too few slabs to be recognized.
#[test]
fn jemalloc_with_few_slabs_is_named() {
    let mut command = Command::new(compiled("quiet"));
    let mut target = Target::from_command(command.env("LD_PRELOAD", JEMALLOC));
    let error = refusal_of(&mut target, LONG_PAUSE).to_string();
    assert!(
        error.starts_with(
            "has no heap that can be searched: memprof cannot read the heap of the jemalloc in /"
        ) && error.ends_with("libjemalloc.so.2"),
        "{error}"
    );
}

/// Cgroup of version 1 or 2, removed on drop.
struct Cgroup {
    directory: PathBuf,
    pid: u32,
}

impl Cgroup {
    /// Moves a process into a new cgroup that has one of these files, and returns which. `None` if no cgroup
    /// can be created, as in a container.
    fn with_process(
        pid: u32,
        hierarchy: &str,
        files: [&'static str; 2],
    ) -> Option<(Self, &'static str)> {
        let roots = ["/sys/fs/cgroup", &format!("/sys/fs/cgroup/{hierarchy}")];
        for root in roots {
            let directory = Path::new(root).join(format!("memprof-leaks-{hierarchy}-{pid}"));
            if fs::create_dir(&directory).is_err() {
                continue;
            }
            let group = Self { directory, pid };
            if let Some(file) = files.into_iter().find(|file| group.path(file).exists()) {
                group.set("cgroup.procs", &pid.to_string());
                return Some((group, file));
            }
        }
        println!(
            "no group with a {} could be made: nothing was refused",
            files[0]
        );
        None
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.path(file);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let parent = self.directory.parent().expect("a cgroup has a parent");
        // The process may have ended.
        let _ = fs::write(parent.join("cgroup.procs"), self.pid.to_string());
        fs::remove_dir(&self.directory).unwrap();
    }
}

#[test]
fn cgroup_with_all_its_processes_is_refused() {
    let mut target = start("planted", &["clean"]);
    let Some((group, limit)) = Cgroup::with_process(target.pid, "pids", ["pids.max"; 2]) else {
        return;
    };
    let threads = fs::read_to_string(group.path("pids.current")).unwrap();
    group.set(limit, &threads);
    let error = refusal_of(&mut target, LONG_PAUSE);
    assert!(
        matches!(&error, Error::PidsLimit { cgroup, limit }
            if cgroup.contains("memprof-leaks-pids") && limit.to_string() == threads.trim()),
        "{error}"
    );
    group.set(limit, "max");
    prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
}

#[test]
fn cgroup_without_memory_for_copied_pages_is_refused() {
    let mut target = start("planted", &["clean"]);
    let files = ["memory.max", "memory.limit_in_bytes"];
    let Some((group, limit)) = Cgroup::with_process(target.pid, "memory", files) else {
        return;
    };
    // The memory that a process has allocated before stays charged to its former cgroup.
    group.set(limit, &(8 << 20).to_string());
    let error = refusal_of(&mut target, LONG_PAUSE);
    assert!(
        matches!(&error, Error::Headroom { limiter, available, .. }
            if limiter.contains("memprof-leaks-memory") && *available <= 8 << 20),
        "{error}"
    );
}

/// The memory that a process has allocated before stays charged to its former cgroup, but each page that it writes
/// while there is a copy is charged to the new one.
#[test]
fn process_that_writes_more_than_its_cgroup_has_left_is_unharmed() {
    let mut target = start("writes", &["80"]);
    let files = ["memory.max", "memory.limit_in_bytes"];
    let Some((group, limit)) = Cgroup::with_process(target.pid, "memory", files) else {
        return;
    };
    group.set(limit, &(64 << 20).to_string());
    // On a busy machine, it may write too little meanwhile to be refused.
    if let Err(error) = prove_leaks(target.pid, LONG_PAUSE, &|_| {}) {
        assert!(
            matches!(error, Error::CopyEnded | Error::Headroom { .. }),
            "{error}"
        );
        assert_eq!(error.exit_code(), 4);
    }
    target.assert_unharmed();
}

/// Its fork would wait for a thread of its own, which is stopped.
#[test]
fn process_whose_forks_wait_for_the_server_of_its_memory_is_refused() {
    let served = |mode: &str| Target::from_command(Command::new(compiled("served")).arg(mode));
    for (mode, is_refused) in [
        ("forks", true),
        ("passed", true),
        ("faults", false),
        ("stranger", false),
    ] {
        let mut target = served(mode);
        let before = children(target.pid);
        match prove_leaks(target.pid, LONG_PAUSE, &|_| {}) {
            Err(error) => {
                assert!(
                    is_refused && matches!(error, Error::ForkEvents),
                    "{mode}: {error}"
                );
                assert_eq!(error.exit_code(), 4);
            }
            Ok(_) => assert!(!is_refused, "{mode}"),
        }
        target.assert_unharmed();
        assert_eq!(children(target.pid), before, "{mode}");
    }
}

/// The kernel lets no thread with that policy fork.
#[test]
fn process_of_deadline_scheduling_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED (needs root): process_of_deadline_scheduling_is_refused");
        return;
    }
    let mut command = Command::new("chrt");
    command.args(["--deadline", "--sched-runtime", "10000000"]);
    command.args([
        "--sched-deadline",
        "100000000",
        "--sched-period",
        "100000000",
        "0",
    ]);
    command.args([
        "sh",
        "-c",
        "echo ready; while read line; do echo \"$line\"; done",
    ]);
    let error = refusal_of(&mut Target::from_command(&mut command), LONG_PAUSE);
    let is_expected = matches!(error, Error::Refused(memprof_ptrace::Refusal::Deadline));
    assert!(is_expected, "{error}");
    assert_eq!(error.exit_code(), 4);
}
