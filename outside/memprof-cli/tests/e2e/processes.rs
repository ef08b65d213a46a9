//! `memprof ps --all`: what can be attached to, and why not the rest.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use tempfile::TempDir;

use crate::curl::as_user;
use crate::dist::{dist, tool_text};
use crate::host::Setup;
use crate::memprof::{Run, memprof};
use crate::root::skip_without_root;

pub(crate) const NOBODY: u32 = 65534;

/// A program of memprof-ptrace's own tests, which every user may execute.
pub(crate) fn compiled(compiler: &str, source: &str, options: &[&str]) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("target");
    let mut command = Command::new(compiler);
    command.args(options).arg("-o").arg(&program);
    command.arg(crate::dist::source("outside/memprof-ptrace/tests/processes").join(source));
    command.env("GOCACHE", place.path().join("cache"));
    tool_text(compiler, &mut command);
    (place, program)
}

/// A process in some state, as target.c knows it; ended when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Pid of the process to examine: the one that was started, or a child of it.
    pub(crate) pid: u32,
}

impl Process {
    pub(crate) fn start(mut command: Command, words: &[&str]) -> Self {
        command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut process = Self {
            pid: child.id(),
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        let ready = process.line();
        let mut ready = ready.split_whitespace();
        assert_eq!(ready.next(), Some("ready"), "{command:?}");
        if let Some(pid) = ready.next() {
            process.pid = pid.parse().unwrap();
        }
        process
    }

    /// Pid of the process that was started.
    pub(crate) fn started(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn type_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid.cast_signed()), signal).unwrap();
    }

    /// Checks that it answers as before.
    pub(crate) fn is_unharmed(&mut self) {
        self.type_line("still there?");
        assert_eq!(self.line(), "still there?\n", "{self:?}");
    }

    /// Waits until it ends by itself. Returns its exit code; `None` if a signal ended it.
    pub(crate) fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Its row of a listing.
    fn row<'a>(&self, listing: &'a Value) -> Option<&'a Value> {
        row(listing, self.pid)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn row(listing: &Value, pid: u32) -> Option<&Value> {
    let rows = listing["processes"].as_array().unwrap();
    rows.iter().find(|row| row["pid"] == pid)
}

/// The kernel makes each file of /proc anew for every reader, which is most of the command's cost.
#[test]
fn each_file_of_a_process_is_opened_once() {
    let (place, program) = compiled("cc", "target.c", &["-O1", "-pthread"]);
    let process = Process::start(Command::new(program), &["serve"]);
    let trace = place.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=openat", "-o"]);
    strace.arg(&trace).arg(dist("bin/memprof"));
    strace.args(["ps", "--all"]);
    tool_text("strace", &mut strace);
    let trace = fs::read_to_string(trace).unwrap();
    let directory = format!("\"/proc/{}/", process.pid);
    let names = trace.lines().filter_map(|line| {
        let (_, name) = line.split_once(&directory)?;
        Some(name.split_once('"')?.0)
    });
    // The program's file is read for its language once for each program and thread.
    let is_program = |name: &&str| ["exe", "mountinfo"].contains(name);
    let mut names: Vec<_> = names.filter(|name| !is_program(name)).collect();
    names.sort_unstable();
    let expected = [
        "auxv", "cgroup", "cmdline", "maps", "mem", "stat", "statm", "status",
    ];
    assert_eq!(names, expected);
}

#[test]
fn every_process_is_loaded_attachable_or_refused() {
    let (_place, dynamic) = compiled("cc", "echo.c", &[]);
    let (_place2, fixed) = compiled("cc", "echo.c", &["-static"]);
    let host = Setup::of("c_host").start();
    let could_be = Process::start(Command::new(&dynamic), &["serve"]);
    let could_not = Process::start(Command::new(&fixed), &["serve"]);
    let listing = memprof(&host.socket_dir(), &["ps", "--all", "--json"])
        .exits(0)
        .json();
    let hosts = listing["hosts"].as_array().unwrap();
    assert!(hosts.iter().any(|row| row["pid"] == host.pid()));
    assert_eq!(row(&listing, host.pid()).unwrap()["state"], "loaded");
    let row = could_be.row(&listing).unwrap();
    assert_eq!(row["state"], "attachable", "{row}");
    assert_eq!(row["name"], "target");
    assert_eq!(row["uid"], geteuid().as_raw());
    assert_eq!(row["command"], format!("{} serve", dynamic.display()));
    assert!(row["rss"].as_u64().unwrap() > 100_000, "{row}");
    assert!(row["growth_bytes_per_s"].is_i64(), "{row}");
    assert_eq!(row["allocators"], serde_json::json!(["glibc"]));
    assert_eq!(row["can"][0], "record");
    let row = could_not.row(&listing).unwrap();
    let words = "is linked statically: nothing in it can load a library";
    assert_eq!(
        (&row["state"], &row["reason"]),
        (&"refused".into(), &words.into())
    );
    assert!(
        row["remedy"]
            .as_str()
            .unwrap()
            .starts_with("link it dynamically"),
        "{row}"
    );
    let rows = listing["processes"].as_array().unwrap();
    let sizes: Vec<_> = rows
        .iter()
        .map(|row| row["rss"].as_u64().unwrap())
        .collect();
    assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
    assert!(
        rows.iter().all(|row| row["name"] != "kthreadd"),
        "{listing}"
    );

    let table = memprof(&host.socket_dir(), &["ps", "--all"])
        .exits(0)
        .stdout;
    let line = |pid: u32| {
        let mut lines = table.lines();
        let line = lines.find(|line| line.split_whitespace().next() == Some(&pid.to_string()));
        line.unwrap_or_else(|| panic!("{pid}: {table}"))
    };
    let heads: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    let expected = "PID USER RSS GROWTH LANGUAGE ALLOCATOR STATE COMMAND";
    assert_eq!(heads.join(" "), expected);
    for (pid, other, state, command) in [
        (host.pid(), "jemalloc", "loaded", "c_host"),
        (could_be.pid, "glibc", "attachable", "target serve"),
        (
            could_not.pid,
            "(works: leaks, holders, ledger)",
            words,
            "target serve",
        ),
    ] {
        let line = line(pid);
        for part in [other, state, command] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    // Without --all, only hosts.
    let listing = memprof(&host.socket_dir(), &["ps", "--json"])
        .exits(0)
        .json();
    assert!(listing.get("processes").is_none(), "{listing}");
}

/// Runs `memprof` as another user.
pub(crate) fn memprof_as_nobody(sockets: &Path, args: &[&str]) -> Run {
    let mut command = as_user(NOBODY, &dist("bin/memprof"));
    command.args(args).env("MEMPROF_SOCKET_DIR", sockets);
    let output = command.output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn other_users_see_only_their_own_processes() {
    if skip_without_root("processes::other_users_see_only_their_own_processes") {
        return;
    }
    let (place, program) = compiled("cc", "target.c", &["-pthread"]);
    let own = |words: &[&str]| Process::start(as_user(NOBODY, &program), words);
    let roots = Process::start(Command::new(&program), &["serve"]);
    let ordinary = own(&["serve"]);
    let undumpable = own(&["undumpable"]);
    let kill = libc::SECCOMP_RET_KILL_PROCESS.to_string();
    let filtered = own(&["filter", &libc::SYS_clone3.to_string(), &kill]);
    let listing = memprof_as_nobody(place.path(), &["ps", "--all", "--json"])
        .exits(0)
        .json();
    assert!(roots.row(&listing).is_none(), "{listing}");
    assert_eq!(ordinary.row(&listing).unwrap()["state"], "attachable");
    let refused = |process: &Process, reason: &str, remedy: &str| {
        let row = process.row(&listing).unwrap();
        assert_eq!(
            (&row["state"], &row["reason"]),
            (&"refused".into(), &reason.into())
        );
        assert!(row["remedy"].as_str().unwrap().contains(remedy), "{row}");
    };
    let file = format!("/proc/{}/mem: Permission denied", undumpable.pid);
    refused(
        &undumpable,
        &file,
        "it lets no other process look into it (prctl PR_SET_DUMPABLE",
    );
    let words = "its seccomp filter cannot be read by this user";
    refused(&filtered, words, "run memprof as root");
    let notes = memprof_as_nobody(place.path(), &["ps", "--all"])
        .exits(0)
        .stderr;
    assert!(
        notes.contains("processes of other users are not listed; root sees them"),
        "{notes}"
    );
    // Root may look into all of them.
    let listing = memprof(place.path(), &["ps", "--all", "--json"])
        .exits(0)
        .json();
    for process in [&roots, &ordinary, &undumpable] {
        assert_eq!(
            process.row(&listing).unwrap()["state"],
            "attachable",
            "{listing}"
        );
    }
    let row = filtered.row(&listing).unwrap();
    let expected = (
        &"attachable".into(),
        &"its seccomp filter is read at attach".into(),
    );
    assert_eq!((&row["state"], &row["note"]), expected);
}
