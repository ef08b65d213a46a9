//! `cargo xtask bench gate`: run time of a command under `memprof test` against its run time alone, and how often the
//! verdict is right.

mod accuracy;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use xtask::dist::{self, dist_dir};
use xtask::packages;
use xtask::run::{project_root, run};

use crate::limits::Measurements;
use crate::ratios::Ratios;

/// Even, so that each of the two commands comes first equally often.
const ROUNDS: usize = 10;

/// A budget that holds, as in most runs of a CI, because only the run time counts here.
const BUDGET: &str = "tolerance = \"50%\"\npeak = 1\nallocated = 1\n";

/// Directory of the programs with which the tests of `memprof test` produce growth.
const SOURCES: &str = "outside/memprof-cli/tests/fixtures/gate";

/// Language, command, and hundreds of records, for a run time of one to three seconds.
type Program = (&'static str, &'static [&'static str], &'static str);

const PROGRAMS: &[Program] = &[
    ("C++", &["target/dist/bench/growth_cpp"], "8000"),
    ("Rust", &["target/dist/bench/growth_rust"], "12000"),
    (
        "Python",
        &[
            "/usr/bin/python3",
            "outside/memprof-cli/tests/fixtures/gate/growth.py",
        ],
        "1000",
    ),
    (
        "Node",
        &[
            "/usr/bin/node",
            "outside/memprof-cli/tests/fixtures/gate/growth.js",
        ],
        "300",
    ),
];

/// Records for each program the run time under `memprof test` relative to that alone, and how often the verdict is
/// right.
pub(crate) fn measure_gate(measurements: &mut Measurements) -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    build_programs()?;
    let directory = tempfile::tempdir()?;
    let nothing = RunTimes::measure(&["/bin/true"], directory.path())?;
    println!(
        "memprof test adds {:.0} ms to a program that does nothing",
        1e3 * (median(&nothing.gated) - median(&nothing.bare))
    );
    for (language, command, records) in PROGRAMS {
        let language_context = || (*language).to_owned();
        let run_times = RunTimes::measure(&[command, &[*records][..]].concat(), directory.path());
        let run_times = run_times.with_context(language_context)?;
        let ratios = run_times.ratios();
        measurements.record(
            &format!("run time under memprof test / bare, {language}"),
            ratios.median(),
            format_args!("{ratios}; bare {:.2} s", median(&run_times.bare)),
        )?;
        accuracy::measure_detection(language, command, directory.path(), measurements)
            .with_context(language_context)?;
    }
    Ok(())
}

/// Returns the command `memprof test` for `command`, with the budget in `directory` and further `options`.
fn gate_command(directory: &Path, options: &[&str], command: &[&str]) -> Command {
    let mut gate_command = Command::new(dist_dir().join("bin/memprof"));
    gate_command
        .args(["test", "--budget"])
        .arg(budget_file(directory));
    gate_command.args(options).arg("--").args(command);
    gate_command
        .current_dir(project_root())
        .stdout(Stdio::null());
    gate_command
}

/// Path of the budget in the directory of the measurement.
fn budget_file(directory: &Path) -> PathBuf {
    directory.join("budget.toml")
}

/// Builds the programs that the gate measures, in C++ and Rust.
fn build_programs() -> Result<()> {
    let cpp = format!("{SOURCES}/growth.cc");
    dist::compile("c++", &cpp, "bench/growth_cpp", &[])?;
    let mut rustc = Command::new("rustc");
    rustc.args(["-g", "-O"]).current_dir(project_root());
    rustc.arg(format!("{SOURCES}/growth.rs"));
    run(rustc.arg("-o").arg(dist_dir().join("bench/growth_rust")))
}

/// Run times of each round in seconds, without and with `memprof test`.
struct RunTimes {
    bare: Vec<f64>,
    gated: Vec<f64>,
}

impl RunTimes {
    /// Runs a program [`ROUNDS`] times alone and as often under `memprof test`, after one run of each that is not
    /// timed. Writes a budget with a wide tolerance to `directory` before.
    fn measure(command: &[&str], directory: &Path) -> Result<Self> {
        fs::write(budget_file(directory), BUDGET)?;
        let gate_command = |options: &[&str]| gate_command(directory, options, command);
        // The first run of each is not timed, because it reads the files from the disk.
        time_run(&mut gate_command(&["--update", "--runs", "1"]))?;
        let bare = || {
            let mut bare = Command::new(command[0]);
            bare.args(&command[1..]);
            bare.current_dir(project_root()).stdout(Stdio::null());
            bare
        };
        time_run(&mut bare())?;
        let mut run_times = Self {
            bare: Vec::new(),
            gated: Vec::new(),
        };
        for round in 0..ROUNDS {
            // The order alternates, so that other load on the machine slows both equally.
            if round % 2 == 0 {
                run_times.bare.push(time_run(&mut bare())?);
                run_times.gated.push(time_run(&mut gate_command(&[]))?);
            } else {
                run_times.gated.push(time_run(&mut gate_command(&[]))?);
                run_times.bare.push(time_run(&mut bare())?);
            }
        }
        Ok(run_times)
    }

    /// Time with `memprof test` divided by that without it, for each round.
    fn ratios(&self) -> Ratios {
        let rounds = self.gated.iter().zip(&self.bare);
        let ratios: Vec<f64> = rounds.map(|(gated, bare)| gated / bare).collect();
        Ratios::new(&ratios)
    }
}

/// Runs a command and returns its run time in seconds.
fn time_run(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    run(command)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Median of run times. Panics if there are none.
fn median(seconds: &[f64]) -> f64 {
    Ratios::new(seconds).median()
}
