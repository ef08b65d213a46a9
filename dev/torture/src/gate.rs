//! `memprof test`, again and again: how often it catches a growth of five per cent, how often it calls
//! wolf, and what it costs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use xtask::dist::dist;
use xtask::run::{root, run as run_to_end};

/// Of a hundred: caught at least, and called at the most.
const CAUGHT: f64 = 0.99;
const CALLED: f64 = 0.01;

/// A program, and what its argument is so that it works for some seconds.
struct Program {
    name: &'static str,
    command: fn(&Path) -> Result<Vec<PathBuf>>,
    records: u32,
    long: u32,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "C++",
        command: |place| compiled("c++", "growth.cc", place),
        records: 40,
        long: 4000,
    },
    Program {
        name: "Rust",
        command: |place| compiled("rustc", "growth.rs", place),
        records: 40,
        long: 8000,
    },
    Program {
        name: "Python",
        command: |_| Ok(vec!["/usr/bin/python3".into(), source("growth.py")]),
        records: 40,
        long: 2000,
    },
    Program {
        name: "Node",
        command: |_| Ok(vec!["/usr/bin/node".into(), source("growth.js")]),
        records: 40,
        long: 400,
    },
];

fn source(name: &str) -> PathBuf {
    root()
        .join("outside/memprof-cli/tests/fixtures/gate")
        .join(name)
}

fn compiled(compiler: &str, name: &str, place: &Path) -> Result<Vec<PathBuf>> {
    let built = place.join(name).with_extension("");
    let optimized = if compiler == "rustc" { "-O" } else { "-O2" };
    let mut command = Command::new(compiler);
    command.args(["-g", optimized]).arg(source(name));
    run_to_end(command.arg("-o").arg(&built))?;
    Ok(vec![built])
}

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let runs = form.pick(3, 100);
    let lines = PROGRAMS.iter().map(|program| judge(program, runs, form));
    Ok(lines.collect::<Result<Vec<_>>>()?.join("; "))
}

fn judge(program: &Program, runs: u32, form: SuiteLength) -> Result<String> {
    let place = tempfile::tempdir()?;
    let command = (program.command)(place.path())?;
    let gate = |options: &[&str], records: u32| -> Result<i32> {
        let mut test = Command::new(dist().join("bin/memprof"));
        test.arg("test").arg("--budget");
        test.arg(place.path().join("budget.toml"))
            .args(options)
            .arg("--");
        test.args(&command).arg(records.to_string());
        let ended = test
            .env("GITHUB_ACTIONS", "false")
            .stdout(Stdio::null())
            .status()?;
        ended.code().context("memprof test was killed")
    };
    let count = |records: u32, expected: i32| -> Result<f64> {
        let mut counted = 0;
        for _ in 0..runs {
            let code = gate(&[], records)?;
            ensure!([0, 7].contains(&code), "{}: exit code {code}", program.name);
            counted += u32::from(code == expected);
        }
        Ok(f64::from(counted) / f64::from(runs))
    };
    ensure!(
        gate(&["--update"], program.records)? == 0,
        "{}: --update failed",
        program.name
    );
    let called = count(program.records, 7)?;
    let caught = count(program.records * 21 / 20, 7)?;
    let ratio = cost(program, &command, &gate, form)?;
    let told = format!(
        "{}: caught {:.0} %, called {:.0} %, {ratio:.2} x the time",
        program.name,
        100.0 * caught,
        100.0 * called
    );
    ensure!(
        caught >= CAUGHT && called <= CALLED,
        "{told}, of {runs} runs each"
    );
    Ok(told)
}

/// The time of a run of some seconds, with all that `memprof test` does, by that of the command alone: of
/// each the least, taken by turns.
fn cost(
    program: &Program,
    command: &[PathBuf],
    gate: &impl Fn(&[&str], u32) -> Result<i32>,
    form: SuiteLength,
) -> Result<f64> {
    let records = form.pick(program.records, program.long);
    let [first, rest @ ..] = command else {
        anyhow::bail!("no command");
    };
    let (mut bare, mut gated) = (Duration::MAX, Duration::MAX);
    for _ in 0..form.pick(1, 5) {
        let begun = Instant::now();
        run_to_end(Command::new(first).args(rest).arg(records.to_string()))?;
        bare = bare.min(begun.elapsed());
        let begun = Instant::now();
        gate(&[], records)?;
        gated = gated.min(begun.elapsed());
    }
    Ok(gated.as_secs_f64() / bare.as_secs_f64())
}
