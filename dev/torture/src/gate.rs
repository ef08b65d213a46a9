//! Suite `gate`: the rates at which `memprof test` detects growth of five per cent and raises false alarms, and its
//! cost.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use xtask::dist::dist_dir;
use xtask::run::{project_root, run as run_to_end};

/// Minimum share of the runs with growth in which it is detected.
const MIN_DETECTION_RATE: f64 = 0.99;
/// Maximum share of the runs without growth that raise an alarm.
const MAX_FALSE_ALARM_RATE: f64 = 0.01;

/// A test program; its argument is a number of records.
struct Program {
    name: &'static str,
    /// Builds the program in a directory if needed, and returns its command.
    command: fn(&Path) -> Result<Vec<PathBuf>>,
    records: u32,
    /// Records for a run of some seconds.
    long_records: u32,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "C++",
        command: |dir| compile_fixture("c++", "growth.cc", dir),
        records: 40,
        long_records: 4000,
    },
    Program {
        name: "Rust",
        command: |dir| compile_fixture("rustc", "growth.rs", dir),
        records: 40,
        long_records: 8000,
    },
    Program {
        name: "Python",
        command: |_| Ok(vec!["/usr/bin/python3".into(), source_path("growth.py")]),
        records: 40,
        long_records: 2000,
    },
    Program {
        name: "Node",
        command: |_| Ok(vec!["/usr/bin/node".into(), source_path("growth.js")]),
        records: 40,
        long_records: 400,
    },
];

/// Path of a program's source among the fixtures of `memprof test`.
fn source_path(name: &str) -> PathBuf {
    project_root()
        .join("outside/memprof-cli/tests/fixtures/gate")
        .join(name)
}

/// Compiles a fixture to `dir`, optimized and with debug information. Returns the command that executes it.
fn compile_fixture(compiler: &str, name: &str, dir: &Path) -> Result<Vec<PathBuf>> {
    let built = dir.join(name).with_extension("");
    let optimized = if compiler == "rustc" { "-O" } else { "-O2" };
    let mut command = Command::new(compiler);
    command.args(["-g", optimized]).arg(source_path(name));
    run_to_end(command.arg("-o").arg(&built))?;
    Ok(vec![built])
}

/// Runs the suite `gate` with each program, and returns its figures in one line. Fails if too little growth is
/// detected, or if there are too many false alarms.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let runs = length.pick(2, 100);
    let lines = PROGRAMS
        .iter()
        .map(|program| check_program(program, runs, length));
    Ok(lines.collect::<Result<Vec<_>>>()?.join("; "))
}

/// Measures how often `memprof test` of one program detects growth and raises a false alarm, and how much longer it
/// takes than the program alone. Returns the figures as text. Fails if one of the rates is beyond its limit, or if
/// `memprof test` fails.
fn check_program(program: &Program, runs: u32, length: SuiteLength) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let command = (program.command)(dir.path())?;
    let gate = |options: &[&str], records: u32| -> Result<i32> {
        let mut test = Command::new(dist_dir().join("bin/memprof"));
        test.arg("test").arg("--budget");
        test.arg(dir.path().join("budget.toml"))
            .args(options)
            .arg("--");
        test.args(&command).arg(records.to_string());
        let status = test
            .env("GITHUB_ACTIONS", "false")
            .stdout(Stdio::null())
            .status()?;
        status.code().context("memprof test was killed")
    };
    // 0 means that the program stays within its budget, 7 that it exceeds it.
    let exit_code_rate = |records: u32, expected: i32| -> Result<f64> {
        let mut matches = 0;
        for _ in 0..runs {
            let code = gate(&[], records)?;
            ensure!([0, 7].contains(&code), "{}: exit code {code}", program.name);
            matches += u32::from(code == expected);
        }
        Ok(f64::from(matches) / f64::from(runs))
    };
    ensure!(
        gate(&["--update"], program.records)? == 0,
        "{}: --update failed",
        program.name
    );
    let false_alarm_rate = exit_code_rate(program.records, 7)?;
    // 5 % more records than the budget was made with.
    let detection_rate = exit_code_rate(program.records * 21 / 20, 7)?;
    let ratio = measure_time_ratio(program, &command, &gate, length)?;
    let summary = format!(
        "{}: {:.0} % detected, {:.0} % false alarms, {ratio:.2} x the time",
        program.name,
        100.0 * detection_rate,
        100.0 * false_alarm_rate
    );
    ensure!(
        detection_rate >= MIN_DETECTION_RATE && false_alarm_rate <= MAX_FALSE_ALARM_RATE,
        "{summary}, of {runs} runs each"
    );
    Ok(summary)
}

/// Returns the run time of `memprof test` divided by that of the command alone; long suites use runs of some seconds.
/// `gate` runs `memprof test` with options and a number of records. Each time is the minimum of several rounds, in
/// which both run in turn.
fn measure_time_ratio(
    program: &Program,
    command: &[PathBuf],
    gate: &impl Fn(&[&str], u32) -> Result<i32>,
    length: SuiteLength,
) -> Result<f64> {
    let records = length.pick(program.records, program.long_records);
    let [first, rest @ ..] = command else {
        anyhow::bail!("no command");
    };
    let (mut bare, mut gated) = (Duration::MAX, Duration::MAX);
    for _ in 0..length.pick(1, 5) {
        let start = Instant::now();
        run_to_end(Command::new(first).args(rest).arg(records.to_string()))?;
        bare = bare.min(start.elapsed());
        let start = Instant::now();
        // The budget is for fewer records, so the exit code may say that it is exceeded.
        gate(&[], records)?;
        gated = gated.min(start.elapsed());
    }
    Ok(gated.as_secs_f64() / bare.as_secs_f64())
}
