//! What is refused, and that nothing was done to it by then.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memprof_leaks::{AnalysisOptions, Error, prove};
use memprof_ptrace::stop::StoppedThread;

use crate::leaks::{JEMALLOC, PATIENT};
use crate::snapshots::children;
use crate::target::{Target, built};
use crate::{compiled, start};

/// Looks at a process, which goes on as before and has no children then.
fn refused(target: &mut Target, options: AnalysisOptions) -> Error {
    let error = prove(target.pid, options, &|_| {}).unwrap_err();
    target.assert_unharmed();
    assert_eq!(children(target.pid), "", "{error}");
    error
}

#[test]
fn a_pause_that_is_too_long_is_refused_before_it_begins() {
    let options = AnalysisOptions {
        max_pause: Duration::from_micros(10),
        ..PATIENT
    };
    let error = refused(&mut start("planted", &["clean"]), options);
    assert!(matches!(error, Error::LongPause { .. }), "{error}");
    let remedy = error.remedy().unwrap();
    assert!(remedy.starts_with("allow it by --max-pause "), "{remedy}");
    assert_eq!(error.exit_code(), 4);
}

#[test]
fn what_takes_more_memory_than_is_allowed_is_refused() {
    let options = AnalysisOptions {
        max_memory: Some(100 << 10),
        ..PATIENT
    };
    let error = refused(&mut start("planted", &["clean"]), options);
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    let remedy = error.remedy().unwrap();
    assert!(remedy.starts_with("allow it by --max-memory "), "{remedy}");
    assert_eq!(error.exit_code(), 4);
}

#[test]
fn filters_that_forbid_clone_are_told() {
    for answer in ["kills", "refuses"] {
        let error = refused(&mut start("planted", &[answer]), PATIENT);
        assert_eq!(error.to_string(), "its seccomp filter forbids clone");
        assert_eq!(error.exit_code(), 4);
    }
}

#[test]
fn a_process_that_somebody_traces_is_left_to_them() {
    let mut target = start("planted", &["clean"]);
    let tracing = StoppedThread::interrupt(target.pid).unwrap();
    let error = prove(target.pid, PATIENT, &|_| {}).unwrap_err().to_string();
    let tracer = format!("process {} already traces", std::process::id());
    assert!(error.starts_with(&tracer), "{error}");
    drop(tracing);
    prove(target.pid, PATIENT, &|_| {}).unwrap();
    target.assert_unharmed();
}

#[test]
fn a_program_for_another_architecture_is_told() {
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
    let error = refused(
        &mut Target::from_command(&mut Command::new(program)),
        PATIENT,
    );
    assert_eq!(error.to_string(), "is a program for i386");
}

/// By the names of their packages' libraries.
#[test]
fn allocators_without_a_known_heap_are_named() {
    for (library, name) in [
        ("libtcmalloc_minimal.so.4", "libtcmalloc"),
        ("libmimalloc.so.2.0", "libmimalloc"),
    ] {
        let mut command = Command::new(compiled("planted"));
        let mut target = Target::from_command(command.arg("clean").env("LD_PRELOAD", library));
        let error = refused(&mut target, PATIENT).to_string();
        let expected = format!("its malloc is that of {name}, whose heap memprof cannot read");
        assert!(error.ends_with(&expected), "{error}");
    }
}

/// As gnuplot, whose C library is the 72nd of 82 objects by their addresses.
#[test]
fn a_c_library_behind_much_other_code_is_found() {
    let library = built("many_code.so", |path| {
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        command.args(["many_code.c", "-o"]).arg(path);
        command
    });
    let mut command = Command::new(compiled("planted"));
    let mut target = Target::from_command(command.arg("clean").env("LD_PRELOAD", library));
    prove(target.pid, PATIENT, &|_| {}).unwrap();
    target.assert_unharmed();
}

#[test]
fn another_c_library_is_told() {
    let program = built("with_musl", |path| {
        let mut command = Command::new("musl-gcc");
        command.args(["-O1", "-static", "quiet.c", "-o"]).arg(path);
        command
    });
    let error = refused(
        &mut Target::from_command(&mut Command::new(program)),
        PATIENT,
    );
    let words = "memprof does not know the signal return code of its C library";
    assert!(error.to_string().ends_with(words), "{error}");
}

#[test]
fn a_heap_whose_layout_does_not_prove_itself_is_said_to() {
    let error = refused(&mut start("quiet", &[]), PATIENT);
    assert_eq!(
        error.to_string(),
        "has no heap that can be searched: found neither a heap of glibc's malloc nor one of jemalloc 5.3"
    );
    assert!(error.remedy().unwrap().contains("2.27 and newer"));
}

/// Its few slabs prove nothing, be it of a known version: what it gave out is not walked.
#[test]
fn a_jemalloc_that_does_not_prove_itself_is_named() {
    let mut command = Command::new(compiled("quiet"));
    let mut target = Target::from_command(command.env("LD_PRELOAD", JEMALLOC));
    let error = refused(&mut target, PATIENT).to_string();
    assert!(
        error.starts_with(
            "has no heap that can be searched: memprof cannot read the heap of the jemalloc in /"
        ) && error.ends_with("libjemalloc.so.2"),
        "{error}"
    );
}

/// A group of processes, of version 1 or 2, removed when dropped.
struct Group {
    place: PathBuf,
    pid: u32,
}

impl Group {
    /// Puts a process into a group that has one of these files, and says which. `None` where no group can be made,
    /// as in a container.
    fn of(pid: u32, hierarchy: &str, files: [&'static str; 2]) -> Option<(Self, &'static str)> {
        let roots = ["/sys/fs/cgroup", &format!("/sys/fs/cgroup/{hierarchy}")];
        for root in roots {
            let place = Path::new(root).join(format!("memprof-leaks-{hierarchy}-{pid}"));
            if fs::create_dir(&place).is_err() {
                continue;
            }
            let group = Self { place, pid };
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
        self.place.join(file)
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.path(file);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let above = self.place.parent().expect("a group lies in another");
        // It may have ended.
        let _ = fs::write(above.join("cgroup.procs"), self.pid.to_string());
        fs::remove_dir(&self.place).unwrap();
    }
}

#[test]
fn a_group_that_has_all_its_processes_is_told() {
    let mut target = start("planted", &["clean"]);
    let Some((group, limit)) = Group::of(target.pid, "pids", ["pids.max"; 2]) else {
        return;
    };
    let threads = fs::read_to_string(group.path("pids.current")).unwrap();
    group.set(limit, &threads);
    let error = refused(&mut target, PATIENT);
    assert!(
        matches!(&error, Error::PidsLimit { cgroup, limit }
            if cgroup.contains("memprof-leaks-pids") && limit.to_string() == threads.trim()),
        "{error}"
    );
    group.set(limit, "max");
    prove(target.pid, PATIENT, &|_| {}).unwrap();
}

#[test]
fn a_group_without_room_for_pages_that_are_written_meanwhile_is_told() {
    let mut target = start("planted", &["clean"]);
    let files = ["memory.max", "memory.limit_in_bytes"];
    let Some((group, limit)) = Group::of(target.pid, "memory", files) else {
        return;
    };
    // What a process has when it comes stays with the group that it leaves.
    group.set(limit, &(8 << 20).to_string());
    let error = refused(&mut target, PATIENT);
    assert!(
        matches!(&error, Error::Headroom { place, left, .. }
            if place.contains("memprof-leaks-memory") && *left <= 8 << 20),
        "{error}"
    );
}
