//! `memprof test`, with programs whose memory grows with an argument.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::dist::{dist, source, tool_text};
use crate::host::TEST_TIMEOUT;
use crate::memprof::Run;

/// Records, in hundreds, for which the budget is written.
const RECORDS: u32 = 40;

fn program(name: &str) -> PathBuf {
    source("outside/memprof-cli/tests/fixtures/gate").join(name)
}

fn compiled(compiler: &str, options: &[&str], name: &str, place: &TempDir) -> String {
    let built = place.path().join("growth");
    let mut command = Command::new(compiler);
    command
        .args(options)
        .arg(program(name))
        .arg("-o")
        .arg(&built);
    tool_text("g++", &mut command);
    built.to_str().unwrap().to_owned()
}

fn in_cpp(place: &TempDir) -> String {
    compiled("c++", &["-g", "-O1"], "growth.cc", place)
}

/// `memprof test` with the budget of `place`.
fn gate(place: &Path, options: &[&str], words: &[&str]) -> Run {
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("test").arg("--budget");
    command.arg(place.join("budget.toml")).args(options);
    command.arg("--").args(words);
    Run::from_command(command.env_remove("GITHUB_ACTIONS"))
}

/// Checks that a run without growth passes, and that a growth of five per cent is detected. Returns the named function.
fn check(place: &TempDir, command: &[&str]) -> Option<String> {
    let with = |records: u32| {
        let records = records.to_string();
        let mut all: Vec<String> = command.iter().map(ToString::to_string).collect();
        all.push(records);
        all
    };
    let run = |options: &[&str], records: u32| {
        let command = with(records);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        gate(place.path(), options, &command)
    };
    run(&["--update", "--runs", "3"], RECORDS).exits(0);
    let same = run(&[], RECORDS).exits(0);
    assert!(same.stdout.contains("ok     peak: "), "{same:?}");
    let grown = run(&["--format", "json"], RECORDS * 21 / 20)
        .exits(7)
        .json();
    assert_eq!(grown["status"], "broken");
    let checks = grown["checks"].as_array().unwrap();
    let guilty = checks
        .iter()
        .find_map(|check| check["guilty"]["function"].as_str());
    guilty.map(str::to_owned)
}

#[test]
fn growth_of_a_cpp_program_is_caught_and_named() {
    let place = tempfile::tempdir().unwrap();
    let program = in_cpp(&place);
    let guilty = check(&place, &[&program]).unwrap();
    assert!(
        guilty.starts_with("keep") || guilty.starts_with("churn"),
        "{guilty}"
    );
}

#[test]
fn growth_of_a_rust_program_is_caught_and_named() {
    let place = tempfile::tempdir().unwrap();
    let program = compiled("rustc", &["-g", "-O"], "growth.rs", &place);
    let guilty = check(&place, &[&program]).unwrap();
    assert!(
        ["growth::keep", "growth::churn", "growth::main"].contains(&guilty.as_str()),
        "{guilty}"
    );
}

#[test]
fn growth_of_a_python_program_is_caught() {
    let place = tempfile::tempdir().unwrap();
    check(
        &place,
        &["/usr/bin/python3", program("growth.py").to_str().unwrap()],
    );
}

#[test]
fn growth_of_a_node_program_is_caught() {
    let place = tempfile::tempdir().unwrap();
    check(
        &place,
        &["/usr/bin/node", program("growth.js").to_str().unwrap()],
    );
}

#[test]
fn smallest_program_and_children_are_counted() {
    let place = tempfile::tempdir().unwrap();
    let program = in_cpp(&place);
    let totals = |command: &[&str]| -> Value {
        std::fs::write(
            place.path().join("budget.toml"),
            "peak = 1\nallocated = 1\n",
        )
        .unwrap();
        gate(place.path(), &["--format", "json"], command)
            .exits(7)
            .json()
    };
    let of = |reported: &Value, at: usize| reported["checks"][at]["measured"].as_u64().unwrap();
    let script = format!("{program} 10; {program} 20; true");
    let both = totals(&["/bin/sh", "-c", &script]);
    // The shell itself ends by _exit(2).
    assert_eq!(both["processes"], 2, "{both}");
    let (one, two) = (totals(&[&program, "10"]), totals(&[&program, "20"]));
    assert_eq!(
        (&one["processes"], of(&both, 0)),
        (&Value::from(1), of(&two, 0)),
        "the largest peak"
    );
    assert!(
        of(&both, 1) >= of(&one, 1) + of(&two, 1),
        "{both} {one} {two}"
    );
    // 100 strings of 1001 to 1500 bytes in each hundred, and 200 to 300.
    let expected = 1000 * (1249 + 250 + 1);
    assert!(
        (expected..expected * 12 / 10).contains(&of(&one, 1)),
        "{one}"
    );
}

#[test]
fn immediately_forked_child_exits() {
    let place = tempfile::tempdir().unwrap();
    let program = compiled("cc", &[], "forks.c", &place);
    std::fs::write(place.path().join("budget.toml"), "peak = \"1GiB\"\n").unwrap();
    gate(place.path(), &[], &[&program]).exits(0);
}

#[test]
fn function_limit_is_checked() {
    let place = tempfile::tempdir().unwrap();
    let program = in_cpp(&place);
    let budget = place.path().join("budget.toml");
    std::fs::write(
        &budget,
        "tolerance = \"10%\"\n[functions.allocated]\nchurn = 0\n",
    )
    .unwrap();
    gate(
        place.path(),
        &["--update", "--lg-sample", "10"],
        &[&program, "40"],
    )
    .exits(0);
    let written = std::fs::read_to_string(&budget).unwrap();
    assert!(
        written.starts_with("tolerance = \"10%\"\n[functions.allocated]\nchurn = "),
        "{written}"
    );
    assert!(!written.contains("\npeak = "), "{written}");
    gate(place.path(), &["--lg-sample", "10"], &[&program, "40"]).exits(0);
    let grown = gate(place.path(), &["--lg-sample", "10"], &[&program, "80"]).exits(7);
    assert!(
        grown.stdout.starts_with("BROKEN allocated by churn: "),
        "{grown:?}"
    );
}

#[test]
fn totals_are_judged_although_the_program_was_replaced() {
    let place = tempfile::tempdir().unwrap();
    let program = in_cpp(&place);
    let script = format!("cp {program} {program}.o && {program}.o 10 && cp /bin/true {program}.o");
    let check = |budget: &str, code, stdout: &str, stderr: &str| {
        std::fs::write(place.path().join("budget.toml"), budget).unwrap();
        let judged = gate(place.path(), &[], &["/bin/sh", "-c", &script]).exits(code);
        assert!(judged.stdout.starts_with(stdout), "{judged:?}");
        assert!(judged.stderr.contains(stderr), "{judged:?}");
    };
    check("allocated = \"1GiB\"\n", 0, "ok     allocated: ", "");
    let unknown = "who broke the budget is not known: ";
    check("allocated = 1\n", 7, "BROKEN allocated: ", unknown);
    check("[functions.peak]\nkeep = 1\n", 6, "", "build id");
}

#[test]
fn each_run_reads_equal_input() {
    let place = tempfile::tempdir().unwrap();
    let text = place.path().join("text");
    std::fs::write(&text, vec![b'x'; 8 << 20]).unwrap();
    let budget = place.path().join("budget.toml");
    std::fs::write(&budget, "peak = \"4MiB\"\n").unwrap();
    let check = |input: Stdio, code| {
        let mut command = Command::new(dist("bin/memprof"));
        command.args(["test", "--runs", "3", "--budget"]);
        command.arg(&budget).env_remove("GITHUB_ACTIONS");
        command.args(["--", "/usr/bin/python3", "-c"]);
        command.arg("import sys; sys.stdin.buffer.read()");
        Run::from_command(command.stdin(input)).exits(code)
    };
    check(Stdio::from(File::open(&text).unwrap()), 7);
    let mut script = File::open(&text).unwrap();
    script.seek(SeekFrom::Start(6 << 20)).unwrap();
    check(Stdio::from(script), 0);
    let (silent, _open) = std::io::pipe().unwrap();
    let refused = check(Stdio::from(silent), 2);
    assert!(refused.stderr.contains("--runs 1"), "{refused:?}");
}

#[test]
fn broken_budget_is_a_github_annotation() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("budget.toml"), "allocated = \"1B\"\n").unwrap();
    let broken = gate(place.path(), &["--format", "github"], &["/bin/true"]).exits(7);
    assert!(broken.stdout.starts_with("::error file="), "{broken:?}");
    assert!(broken.stdout.contains("\nBROKEN allocated: "), "{broken:?}");
}

#[test]
fn annotation_names_the_file_as_its_repository_does() {
    let place = tempfile::tempdir().unwrap();
    let sub = place.path().join("sub");
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("memory.toml"), "# c\nallocated = 1\n").unwrap();
    let absolute = sub.join("memory.toml");
    for budget in [
        "memory.toml",
        "./memory.toml",
        "../sub/memory.toml",
        absolute.to_str().unwrap(),
    ] {
        let mut command = Command::new(dist("bin/memprof"));
        command.args(["test", "--budget", budget, "--", "/bin/true"]);
        command.current_dir(&sub).env("GITHUB_ACTIONS", "true");
        command.env("GITHUB_WORKSPACE", place.path());
        let broken = Run::from_command(&mut command).exits(7).stdout;
        assert!(
            broken.starts_with("::error file=sub/memory.toml,line=2,"),
            "{budget}: {broken}"
        );
    }
}

#[test]
fn limit_that_matches_nothing_is_noted() {
    let place = tempfile::tempdir().unwrap();
    let program = in_cpp(&place);
    let budget = "peak = \"1GiB\"\n[functions.peak]\nkeep_renamed = 1 # why\n";
    fs::write(place.path().join("budget.toml"), budget).unwrap();
    let check = |options: &[&str], code: i32, stdout: &str| {
        let run = gate(place.path(), options, &[&program, "40"]).exits(code);
        assert!(run.stdout.contains(stdout), "{run:?}");
        let note = "no sample has the function of the limit peak by keep_renamed";
        assert!(run.stderr.contains(note), "{run:?}");
    };
    check(&[], 0, "?      peak by keep_renamed: ");
    check(&["--strict"], 5, "?      peak by keep_renamed: ");
    check(&["--format", "json"], 0, "\"is_matched\":false");
    check(&["--format", "github"], 0, "::warning file=");
    check(&["--format", "junit"], 0, "<skipped message=");
    check(&["--update", "--runs", "1"], 0, "wrote ");
    let written = fs::read_to_string(place.path().join("budget.toml")).unwrap();
    assert!(written.contains("keep_renamed = 1 # why"), "{written}");
}

#[test]
fn report_is_written_beside_the_text_and_changes_no_verdict() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("budget.toml"), "allocated = 1\n").unwrap();
    let report = place.path().join("report");
    let check = |format: &str, expected: &str| {
        let written = |path: &str| {
            let options = ["--format", format, "-o", path];
            let run = gate(place.path(), &options, &["/bin/echo", "of the command"]).exits(7);
            assert!(
                run.stdout.starts_with("of the command\nBROKEN allocated: "),
                "{run:?}"
            );
        };
        written(report.to_str().unwrap());
        let text = fs::read_to_string(&report).unwrap();
        assert!(text.starts_with(expected), "{text}");
        written("/dev/full");
        written("/no/such/directory/report");
        // On standard output it is alone.
        let run = gate(
            place.path(),
            &["--format", format],
            &["/bin/echo", "of the command"],
        );
        assert!(run.exits(7).stdout.starts_with(expected));
    };
    check(
        "junit",
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites ",
    );
    check(
        "sarif",
        "{\"$schema\":\"https://json.schemastore.org/sarif-2.1.0.json\"",
    );
    check("gitlab", "[{\"description\":\"BROKEN allocated: ");
    check("json", "{\"schema_version\":1,\"status\":\"broken\"");
}

#[test]
fn unjudgeable_run_has_its_own_exit_code() {
    let place = tempfile::tempdir().unwrap();
    let check = |command: &[&str], code, expected: &str| {
        let refused = gate(place.path(), &[], command).exits(code);
        assert!(refused.stderr.contains(expected), "{refused:?}");
    };
    check(&["/bin/true"], 2, "--update writes one");
    std::fs::write(place.path().join("budget.toml"), "peak = \"1GiB\"\n").unwrap();
    check(&["/bin/sh", "-c", "exit 3"], 1, "failed: exit status 3");
    check(&["/bin/sh", "-c", "kill -9 $$"], 1, "failed: signal 9");
    let plain_rust = dist("examples/plain_rust");
    check(
        &[plain_rust.to_str().unwrap()],
        4,
        "brings an allocator of its own",
    );
    let no_exit = "import os; os._exit(0)";
    check(&["/usr/bin/python3", "-c", no_exit], 5, "left no figures");
    for (budget, expected) in [
        ("peek = 1\n", "unknown field `peek`"),
        ("", "limits nothing"),
        ("# peak = 1\ntolerance = \"5%\"\n", "limits nothing"),
        (
            "[functions.peak]\n[baseline.peak]\nf = 1\n",
            "limits nothing",
        ),
        ("peak = 1e9\n", "expected a size: a whole number of bytes"),
    ] {
        std::fs::write(place.path().join("budget.toml"), budget).unwrap();
        check(&["/bin/true"], 2, expected);
    }
}

/// Starts `memprof test` with a command that has started another process, and returns that one's pid too. `trap` is
/// the shell's word for what the command does on signals.
fn started(place: &Path, trap: &str) -> (Child, u32) {
    let file = place.join("pid");
    let script = format!(
        "{trap}; sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait; wait",
        file.display()
    );
    // Signals have their default actions, whatever runs the tests.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT,TERM,HUP")
        .arg(dist("bin/memprof"));
    command.args(["test", "--update", "--runs", "1", "--budget"]);
    command.arg(place.join("budget.toml"));
    command
        .args(["--", "sh", "-c", &script])
        .env("TMPDIR", place);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let gate = command.spawn().unwrap();
    let begun = Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the command does not start");
        thread::sleep(Duration::from_millis(1));
    }
    let pid = fs::read_to_string(file).unwrap();
    (gate, pid.trim().parse().unwrap())
}

/// Whether a process is there and no zombie, which the first process of a container may leave.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn interrupted_gate_ends_the_command_and_its_children() {
    let check = |trap: &str, signals: &[Signal], code: i32| {
        let place = tempfile::tempdir().unwrap();
        let (gate, pid) = started(place.path(), trap);
        for signal in signals {
            kill(Pid::from_raw(gate.id().cast_signed()), *signal).unwrap();
        }
        let ended = gate.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        // The kernel may still be ending it.
        let end = Instant::now() + Duration::from_secs(60);
        while runs(pid) {
            assert!(
                Instant::now() < end,
                "{signals:?} left the command's process"
            );
        }
        let files = fs::read_dir(place.path()).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, ["pid"], "{signals:?}");
    };
    check(":", &[Signal::SIGINT], 130);
    check(":", &[Signal::SIGTERM], 143);
    check(":", &[Signal::SIGHUP], 129);
    check(
        "trap '' INT TERM HUP",
        &[Signal::SIGHUP, Signal::SIGTERM],
        129,
    );
}
