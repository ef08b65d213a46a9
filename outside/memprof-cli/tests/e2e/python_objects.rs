//! Python's own objects of up to 512 bytes in the profiles of a process that was not prepared for it.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::memprof::{Run, memprof};
use crate::processes::Process;

const PYTHON: &str = "/usr/bin/python3";

/// A program that keeps tuples of 57 items, as many as a line says; `thread` keeps 1,000 in a thread, `fork` in a child.
const TUPLES: &str = r#"
import gc, os, sys, threading
kept = []
def leak(n):
    part = list(range(57))
    for _ in range(n):
        kept.append(tuple(part))
def drop():
    kept.clear()
    gc.collect()
def fork():
    child = os.fork()
    if child == 0:
        leak(1000)
        drop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "trace":
        import tracemalloc; tracemalloc.start()
    elif word == "untrace": tracemalloc.stop()
    elif word == "drop": drop()
    elif word == "fork": fork()
    elif word == "thread":
        thread = threading.Thread(target=leak, args=(1000,)); thread.start(); thread.join()
    else: leak(int(word))
    print("done", flush=True)
"#;

/// Bytes of a tuple of 57 items, as it is requested from the allocator: `PyGC_Head`, reference count, type, size, items.
const TUPLE_BYTES: f64 = 16.0 + 24.0 + 57.0 * 8.0;

/// Sample interval of the tests.
const INTERVAL: f64 = 4096.0;

/// Exit code of `memprof report` for a profile without samples.
const EMPTY_PROFILE: i32 = 5;

/// Far longer than memprof's sampler takes to see another tool's hook.
const MAX_WAIT: Duration = Duration::from_secs(20);

struct Attached {
    process: Process,
    place: tempfile::TempDir,
}

impl Attached {
    fn start(environment: &[(&str, &str)]) -> Self {
        // At random addresses, the arenas may cross a multiple of 16 GiB: then pymalloc allocates another node of its tree
        // of arenas, 128 KiB in `leak`, and keeps it.
        let mut command = Command::new("setarch");
        command
            .args(["-R", PYTHON])
            .envs(environment.iter().copied());
        let process = Process::start(command, &["-c", TUPLES]);
        let place = tempfile::tempdir().unwrap();
        let mut attached = Self { process, place };
        attached.attach();
        attached
    }

    fn attach(&mut self) {
        let dumps = format!("dump_dir={}", self.place.path().display());
        self.memprof("attach", &[&dumps]).exits(0);
        self.memprof("activate", &["sample_interval=4KiB"]).exits(0);
    }

    fn memprof(&self, command: &str, args: &[&str]) -> Run {
        let pid = self.process.pid.to_string();
        memprof(self.place.path(), &[&[command, &pid], args].concat())
    }

    fn tell(&mut self, word: &str) {
        self.process.type_line(word);
        assert_eq!(self.process.line(), "done\n", "{word}");
    }

    /// Reason why objects are not sampled.
    fn off_because(&self) -> Value {
        let status = self.memprof("status", &["--json"]).exits(0).json();
        status["languages"][0]["objects_off_because"].clone()
    }

    /// Waits until the reason has this text; `null`: objects are sampled.
    fn wait_until_off_because(&self, text: &str) {
        let start = Instant::now();
        while !self.off_because().to_string().contains(text) {
            assert!(start.elapsed() < MAX_WAIT, "{text}");
        }
    }

    /// The report. `None` if nothing that was sampled is in use.
    fn report(&self) -> Option<Value> {
        let file = self.place.path().join("written.heap");
        let file = file.to_str().unwrap();
        self.memprof("dump", &["-o", file]).exits(0);
        let args = ["report", file, "--format", "json"];
        let report = memprof(self.place.path(), &args);
        (report.code != EMPTY_PROFILE).then(|| report.exits(0).json())
    }

    /// Bytes of the row of `leak`, and the notes.
    fn leaked(&self) -> (f64, String) {
        let Some(report) = self.report() else {
            return (0.0, String::new());
        };
        let damaged = report["warnings"].to_string().contains("damaged");
        assert!(!damaged, "{}", report["warnings"]);
        let rows = report["functions"].as_array().unwrap();
        let name = |row: &&Value| {
            row["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("leak "))
        };
        let bytes = rows
            .iter()
            .filter(name)
            .filter_map(|row| row["flat"].as_f64());
        (bytes.sum(), report["warnings"].to_string())
    }
}

/// Asserts that bytes are those of `count` tuples, within four standard errors.
fn assert_tuples(bytes: f64, count: f64) {
    let expected = count * TUPLE_BYTES;
    let error = (expected * INTERVAL).sqrt();
    assert!(
        (bytes - expected).abs() <= 4.0 * error,
        "{bytes} {expected} {error}"
    );
}

#[test]
fn row_of_small_objects_has_bytes_and_type_until_detach() {
    let mut python = Attached::start(&[]);
    assert_eq!(python.off_because(), Value::Null);
    python.tell("20000");
    let (bytes, notes) = python.leaked();
    assert_tuples(bytes, 20_000.0);
    assert!(notes.contains("by type: tuple"), "{notes}");
    python.tell("thread");
    python.tell("fork");
    assert_tuples(python.leaked().0, 21_000.0);
    // Frees are seen while sampling is off.
    python.memprof("deactivate", &[]).exits(0);
    python.tell("1000");
    assert_tuples(python.leaked().0, 21_000.0);
    python.tell("drop");
    assert_tuples(python.leaked().0, 0.0);
    python.memprof("detach", &[]).exits(0);
    python.tell("1000");
    python.attach();
    python.tell("5000");
    assert_tuples(python.leaked().0, 5000.0);
    python.memprof("detach", &[]).exits(0);
    python.tell("drop");
}

#[test]
fn objects_of_another_tools_hook_are_left_alone() {
    let check = |environment: &[(&str, &str)], reason: Option<&str>| {
        let mut python = Attached::start(environment);
        python.tell("5000");
        let off = python.off_because();
        match reason {
            Some(reason) => assert!(
                off.as_str().is_some_and(|off| off.contains(reason)),
                "{off}"
            ),
            None => {
                assert_eq!(off, Value::Null);
                assert_tuples(python.leaked().0, 5000.0);
            }
        }
        python.memprof("detach", &[]).exits(0);
        python.tell("drop");
    };
    check(&[("PYTHONMALLOC", "malloc")], None);
    check(&[("PYTHONMALLOC", "debug")], Some("checks its objects"));
    check(&[("PYTHONTRACEMALLOC", "1")], Some("tracemalloc"));
}

#[test]
fn tracemalloc_may_start_and_stop_between() {
    let mut python = Attached::start(&[]);
    python.tell("5000");
    python.tell("trace");
    // The hooks stay below those of tracemalloc. They count nothing, as the status says.
    python.wait_until_off_because("tracemalloc");
    let before = python.leaked().0;
    python.tell("5000");
    // tracemalloc's own table, which malloc serves, grows.
    assert!(python.leaked().0 - before < 0.5 * 5000.0 * TUPLE_BYTES);
    python.tell("untrace");
    python.wait_until_off_because("null");
    python.tell("5000");
    assert_tuples(python.leaked().0, 10_000.0);
    python.tell("trace");
    python.memprof("detach", &[]).exits(0);
    python.tell("1000");
    python.tell("untrace");
    python.tell("1000");
    python.attach();
    assert_eq!(python.off_because(), Value::Null);
    python.tell("5000");
    assert_tuples(python.leaked().0, 5000.0);
    python.memprof("detach", &[]).exits(0);
    python.tell("drop");
}
