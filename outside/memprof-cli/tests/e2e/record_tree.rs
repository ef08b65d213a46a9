//! `memprof record --tree`: a process and its descendants, in one report.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::dist::{dist, source};
use crate::host::TEST_TIMEOUT;
use crate::memprof::{Run, memprof};
use crate::processes::{Process, compiled};

const PYTHON: &str = "/usr/bin/python3";

/// A recorded server with workers.
struct Server {
    process: Process,
    workers: Vec<u32>,
    place: TempDir,
}

impl Server {
    fn start(workers: usize, beside: &[&str]) -> Self {
        let program = source("outside/memprof-cli/tests/fixtures/python/prefork.py");
        let words = [&[program.to_str().unwrap()], beside].concat();
        let mut server = Self {
            process: Process::start(Command::new(PYTHON), &words),
            workers: Vec::new(),
            place: tempfile::tempdir().unwrap(),
        };
        for _ in 0..workers {
            server.fork();
        }
        server
    }

    fn tell(&mut self, line: &str) -> String {
        self.process.type_line(line);
        let reply = self.process.line();
        assert!(reply.starts_with("done"), "{line}: {reply}");
        reply
    }

    fn fork(&mut self) {
        let reply = self.tell("fork");
        let pid = reply.trim().rsplit(' ').next().unwrap();
        self.workers.push(pid.parse().unwrap());
    }

    fn pids(&self) -> Vec<u32> {
        [&[self.process.pid], &self.workers[..]].concat()
    }

    fn memprof(&self, args: &[&str]) -> Run {
        memprof(self.place.path(), args)
    }

    /// Starts a recording, with the signals' default actions, whatever runs the tests.
    fn record(&self, args: &[&str]) -> Child {
        Command::new("env")
            .arg("--default-signal=INT,TERM,HUP")
            .arg(dist("bin/memprof"))
            .args([
                "record",
                &self.process.pid.to_string(),
                "--tree",
                "--for",
                "10m",
            ])
            .args(args)
            .env("MEMPROF_SOCKET_DIR", self.place.path())
            .env("XDG_STATE_HOME", self.place.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits until each process samples.
    fn wait_until_sampled(&self) {
        let begun = Instant::now();
        let is_sampled = |pid: &u32| {
            let status = self.memprof(&["status", &pid.to_string(), "--json"]);
            status.code == 0 && status.json()["profiling"] == "active"
        };
        while !self.pids().iter().all(is_sampled) {
            assert!(begun.elapsed() < TEST_TIMEOUT);
            testkit::pause();
        }
    }

    /// Waits until the first process has a thread of the plugin's, which does not sample yet.
    fn wait_until_entered(&mut self) {
        let begun = Instant::now();
        let tasks = format!("/proc/{}/task", self.process.pid);
        let is_plugin = |task: io::Result<DirEntry>| {
            let name = fs::read_to_string(task?.path().join("comm"))?;
            io::Result::Ok(name.starts_with("memprof-"))
        };
        while !fs::read_dir(&tasks)
            .unwrap()
            .any(|task| is_plugin(task).unwrap_or(false))
        {
            assert!(begun.elapsed() < TEST_TIMEOUT);
        }
    }

    /// Checks that no process has the plugin, and that all answer.
    fn is_as_before(&mut self) {
        for pid in self.pids() {
            let status = self.memprof(&["status", &pid.to_string()]);
            assert_eq!(status.code, 3, "{pid}: {}", status.stdout);
        }
        self.tell("leak 1");
    }
}

/// Interrupts a recording. Returns its exit code, stdout and stderr.
fn interrupt(recording: Child) -> Run {
    let pid = Pid::from_raw(recording.id().cast_signed());
    kill(pid, Signal::SIGINT).unwrap();
    let output = recording.wait_with_output().unwrap();
    Run::from_output(output)
}

/// The first row of a report in JSON: its name, and its MiB.
fn first_row(report: &Value) -> (&str, f64) {
    let row = &report["functions"][0];
    let bytes = row["flat"].as_f64().unwrap();
    (row["name"].as_str().unwrap(), bytes / f64::from(1 << 20))
}

#[test]
fn row_is_the_sum_over_workers_also_over_those_forked_meanwhile() {
    let (_place, fixed) = compiled("cc", "echo.c", &["-static"]);
    let mut server = Server::start(2, &[fixed.to_str().unwrap(), "serve"]);
    let dump = server.place.path().join("all.heap");
    let dump = dump.to_str().unwrap();
    let recording = server.record(&["--sample-interval", "64KiB", "-o", dump]);
    server.wait_until_sampled();
    server.tell("leak 3");
    server.fork();
    server.wait_until_sampled();
    server.tell("leak 5");
    // The exit dump of the first worker is its part.
    let ended = server.workers.remove(0);
    server.tell(&format!("end {ended}"));
    let run = interrupt(recording);
    assert_eq!(run.code, 130, "{run:?}");
    let row = run.stdout.lines().find(|line| line.contains("leak "));
    assert!(row.is_some_and(|row| row.contains("29.00MiB")), "{run:?}");
    assert!(run.stdout.contains(" of 4 processes, "), "{run:?}");
    for note in [
        "is linked statically".to_owned(),
        format!("{ended} has ended"),
        "the profile is that of its exit".to_owned(),
        "4 processes: ".to_owned(),
        "interrupted".to_owned(),
    ] {
        assert!(run.stderr.contains(&note), "{note}: {run:?}");
    }
    server.is_as_before();

    let report = server.memprof(&["report", dump, "--format", "json"]);
    let report = report.exits(0).json();
    let (name, mebibytes) = first_row(&report);
    assert!(
        name.starts_with("leak ") && name.ends_with("prefork.py:18"),
        "{name}"
    );
    assert!((28.9..29.1).contains(&mebibytes), "{mebibytes}");
    let processes = report["origin"]["processes"].as_array().unwrap();
    let held: Vec<_> = processes
        .iter()
        .map(|row| {
            (
                row["pid"].as_u64(),
                row["inuse_space"].as_u64().unwrap() >> 20,
            )
        })
        .collect();
    let pid = |pid: u32| Some(u64::from(pid));
    let expected = [
        (pid(server.process.pid), 8),
        (pid(ended), 8),
        (pid(server.workers[0]), 8),
        (pid(server.workers[1]), 5),
    ];
    assert_eq!(held, expected, "{report}");
    let again = server.memprof(&["report", dump, "--base", dump]);
    assert!(again.exits(0).stdout.contains("changed by 0 bytes"));
}

#[test]
fn each_process_is_as_before_whatever_ends_the_recording() {
    let mut server = Server::start(2, &[]);
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let recording = server.record(&["--format", "json"]);
        server.wait_until_sampled();
        let pid = Pid::from_raw(recording.id().cast_signed());
        kill(pid, signal).unwrap();
        let output = recording.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(128 + signal as i32));
        server.is_as_before();
    }
    let pid = server.process.pid.to_string();
    let timed = ["record", &pid, "--tree", "--for", "1s"];
    // Nothing is allocated meanwhile.
    server.memprof(&timed).exits(5);
    server.is_as_before();
}

#[test]
fn process_that_executes_its_program_anew_is_recorded_again() {
    let check = |wait: fn(&mut Server)| {
        let mut server = Server::start(1, &[]);
        let recording = server.record(&["--sample-interval", "64KiB"]);
        wait(&mut server);
        server.process.type_line("exec");
        assert_eq!(server.process.line(), "ready\n");
        server.workers.clear();
        server.fork();
        server.wait_until_sampled();
        server.tell("leak 5");
        let run = interrupt(recording);
        assert_eq!(run.code, 130, "{run:?}");
        let row = run.stdout.lines().find(|line| line.contains("leak "));
        let mebibytes = row.and_then(|row| row.split("MiB").next()?.trim().parse().ok());
        // Without those of before, whose memory is freed.
        let is_right = mebibytes.is_some_and(|found: f64| (9.9..=10.1).contains(&found));
        assert!(is_right, "{run:?}");
        let note = format!(
            "{} (python3): it has executed another program",
            server.process.pid
        );
        assert!(run.stderr.contains(&note), "{run:?}");
        let remedy = format!("memprof detach {}", server.process.pid);
        assert!(!run.stderr.contains(&remedy), "{run:?}");
        server.is_as_before();
    };
    check(|server| {
        server.wait_until_sampled();
        server.tell("leak 2");
    });
    check(Server::wait_until_entered);
}

#[test]
fn tree_needs_a_process() {
    let check = |args: &[&str], text: &str| {
        let run = memprof(
            Path::new("/nonexistent"),
            &[&["record", "--tree"], args].concat(),
        );
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.contains(text), "{run:?}");
    };
    check(&[], "need a process");
    check(&["/run/no.sock"], "--tree needs a process");
}
