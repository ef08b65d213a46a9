//! The functions of a Python program in the profiles of a process that was not prepared for it.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::dist::{source, tool_text};
use crate::memprof::{Run, memprof};
use crate::processes::{Process, compiled};

const PYTHON: &str = "/usr/bin/python3";

/// Bytes of each allocation of shapes.py.
const SHAPE_BYTES: u64 = 1 << 20;

struct Attached {
    process: Process,
    sockets: TempDir,
}

impl Attached {
    fn start(arguments: &[&str]) -> Self {
        Self::attach(Process::start(Command::new(PYTHON), arguments))
    }

    fn attach(process: Process) -> Self {
        let sockets = tempfile::tempdir().unwrap();
        let attached = Self { process, sockets };
        let dumps = format!("dump_dir={}", attached.sockets.path().display());
        attached.memprof("attach", &[&dumps]).exits(0);
        attached
    }

    fn memprof(&self, command: &str, args: &[&str]) -> Run {
        let pid = self.process.pid.to_string();
        memprof(self.sockets.path(), &[&[command, &pid], args].concat())
    }

    /// The only interpreter, as `status` shows it.
    fn language(&self) -> Value {
        self.memprof("status", &["--json"]).exits(0).json()["languages"][0].clone()
    }

    fn report(&self, args: &[&str]) -> String {
        let file = self.sockets.path().join("written.heap");
        let file = file.to_str().unwrap();
        self.memprof("dump", &["-o", file]).exits(0);
        let args = [&["report", file], args].concat();
        memprof(self.sockets.path(), &args).exits(0).stdout
    }
}

/// The stacks of folded text that hold at least half of a shape's allocation, with the number of allocations.
fn allocations(collapsed: &str) -> BTreeMap<String, u64> {
    let lines = collapsed.lines().filter_map(|line| {
        let (stack, bytes) = line.rsplit_once(' ')?;
        let count = (bytes.parse::<u64>().ok()? + SHAPE_BYTES / 2) / SHAPE_BYTES;
        (count > 0).then(|| (stack.to_owned(), count))
    });
    lines.collect()
}

#[test]
fn stacks_of_every_shape_are_those_of_the_interpreter() {
    let shapes = source("outside/memprof-cli/tests/fixtures/python/shapes.py");
    let mut python = Attached::start(&[shapes.to_str().unwrap()]);
    python
        .memprof("activate", &["sample_interval=4KiB"])
        .exits(0);
    python.process.type_line("run");
    let expected: Vec<String> = serde_json::from_str(&python.process.line()).unwrap();
    let mut counts = BTreeMap::new();
    for stack in expected {
        *counts.entry(stack).or_insert(0) += 1;
    }
    let collapsed = python.report(&["--format", "collapsed"]);
    assert_eq!(allocations(&collapsed), counts);
    let language = python.language();
    assert_eq!(language["language"], "python");
    assert_eq!(language["off_because"], Value::Null, "{language}");
    assert_eq!(language["ended_early"], 0, "{language}");
    assert!(language["with_frames"].as_u64() >= Some(counts.len() as u64));
}

/// A program whose only growth is `Cache.add`, in a module of the standard library's name.
const CACHE: &str = r#"
import sys
class Cache:
    kept = []
    def add(self):
        self.kept.append(bytearray(1 << 20))
print("ready", flush=True)
for line in sys.stdin:
    Cache().add()
    print("done", flush=True)
"#;

#[test]
fn row_is_function_with_file_and_line_until_languages_are_off() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("app größe.py");
    std::fs::write(&program, CACHE).unwrap();
    let program = program.to_str().unwrap();
    let mut python = Attached::start(&[program]);
    let add = |python: &mut Attached, languages: &str| {
        python
            .memprof("activate", &["sample_interval=4KiB", languages])
            .exits(0);
        python.process.type_line("add");
        assert_eq!(python.process.line(), "done\n");
    };
    add(&mut python, "languages=auto");
    let report: Value = serde_json::from_str(&python.report(&["--format", "json"])).unwrap();
    let row = &report["functions"][0];
    assert_eq!(row["name"], format!("Cache.add {program}:6"), "{report}");
    let place = [&row["language"], &row["file"], &row["line"]];
    assert_eq!(
        place,
        [
            &Value::from("python"),
            &Value::from(program),
            &Value::from(6)
        ]
    );
    let native = python.report(&["--native", "--format", "collapsed"]);
    let line = native
        .lines()
        .find(|line| line.contains("Cache.add"))
        .unwrap();
    assert!(
        line.starts_with("_start;") || line.contains("Py_"),
        "{line}"
    );
    let jeprof = python.report(&["--format", "jeprof"]);
    assert!(
        !jeprof.contains("Cache.add") && !jeprof.contains("4d5004"),
        "{jeprof}"
    );
    add(&mut python, "languages=off");
    assert_eq!(python.language()["off_because"], "languages=off was chosen");
    let json = python.report(&["--format", "json"]);
    assert!(
        json.contains("are in no stack: languages=off was chosen"),
        "{json}"
    );
}

/// Starts odd.py with a FIFO as its gate.
fn start_odd() -> (Attached, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let gate = place.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let odd = source("outside/memprof-cli/tests/fixtures/python/odd.py");
    let mut command = Command::new(PYTHON);
    command.arg(odd).arg(gate);
    let mut process = Process::start(command, &[]);
    process.type_line("lock");
    assert_eq!(process.line(), "locked\n");
    (Attached::attach(process), place)
}

#[test]
fn interpreter_that_is_locked_or_makes_odd_code_is_read() {
    // Attached and activated while the only thread is in C with the global lock.
    let (mut python, place) = start_odd();
    python
        .memprof("activate", &["sample_interval=64KiB"])
        .exits(0);
    std::fs::write(place.path().join("gate"), "x").unwrap();
    assert_eq!(python.process.line(), "done\n");
    for word in ["remade", "long"] {
        python.process.type_line(word);
        assert_eq!(python.process.line(), "done\n");
    }
    let stacks = allocations(&python.report(&["--format", "collapsed"]));
    let made = |stack: &&String| {
        let (_, function) = stack.rsplit_once(';')?;
        Some(
            function
                .strip_prefix("made_")?
                .split_once(' ')?
                .0
                .to_owned(),
        )
    };
    let found: Vec<_> = stacks.keys().filter_map(|stack| made(&stack)).collect();
    let expected: Vec<_> = (0..200).map(|number| format!("{number:03}")).collect();
    assert_eq!(found, expected);
    let is_cut = |stack: &String| stack.contains("nnnnnnnn") && stack.len() < 1000;
    assert!(stacks.keys().any(is_cut), "{stacks:?}");
    let language = python.language();
    assert_eq!(language["ended_early"], 0, "{language}");
    // It ends as it would, with a finalizer that allocates, while it is sampled.
    python.process.type_line("end");
    assert_eq!(python.process.line(), "finalized\n");
    assert_eq!(python.process.end(), Some(0));
}

#[test]
fn library_that_only_calls_itself_python_is_left_alone() {
    let (place, program) = compiled("cc", "echo.c", &[]);
    let library = place.path().join("libpython3.11.so.1.0");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library);
    cc.arg(source("outside/memprof-cli/tests/fixtures/fake_python.c"));
    tool_text("cc", &mut cc);
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library);
    let mut fake = Attached::attach(Process::start(command, &["serve"]));
    fake.memprof("activate", &["sample_interval=4KiB"]).exits(0);
    let language = fake.language();
    let off = language["objects_off_because"].as_str();
    assert_eq!(off, Some("its allocator is not known"), "{language}");
    fake.process.is_unharmed();
    fake.memprof("detach", &[]).exits(0);
    fake.process.is_unharmed();
}

/// A program with 1,000 small objects in an attribute of a class, beside others.
const SESSIONS: &str = r#"
import sys
class Session:
    __slots__ = ("number",)
class Registry:
    sessions = {number: Session() for number in range(1000)}
    blob = bytearray(100)
print("ready", flush=True)
for line in sys.stdin: print("done", flush=True)
"#;

#[test]
fn holders_name_attribute_of_class_and_census_counts_types() {
    let mut python = Process::start(Command::new(PYTHON), &["-c", SESSIONS]);
    let pid = python.pid.to_string();
    let run = |args: &[&str]| {
        let place = tempfile::tempdir().unwrap();
        let slow = ["holders", &pid, "--max-pause", "5s"];
        memprof(place.path(), &[&slow, args].concat()).exits(0)
    };
    let found = run(&["--json", "--class", "^__main__.Session$"]).json();
    let row = &found["holders"][0];
    assert_eq!(row["objects"], 1000, "{found}");
    let path = row["path"].as_array().unwrap();
    let outermost = &path[path.len() - 1];
    assert_eq!(outermost["kind"], "variable", "{found}");
    let name = "__main__.Registry.sessions (dict)";
    assert_eq!(outermost["name"], name, "{found}");
    let counted = run(&["--json", "--census"]).json();
    let types = counted["types"].as_array().unwrap();
    let session = types
        .iter()
        .find(|row| row["name"] == "__main__.Session")
        .unwrap();
    // sys.getsizeof(): reference count, type and number, behind the collector's two words.
    let expected = [&Value::from(1000), &Value::from(1000 * 40)];
    assert_eq!([&session["objects"], &session["bytes"]], expected);
    let text = run(&["--census", "--top", "3"]).stdout;
    let heading = format!("{pid} (python3): ");
    assert!(text.starts_with(&heading), "{text}");
    assert!(text.contains("pymalloc's pools have"), "{text}");
    python.type_line("still there");
    assert_eq!(python.line(), "done\n");
}
