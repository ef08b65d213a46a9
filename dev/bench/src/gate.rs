//! `cargo xtask bench gate`: how much longer a command takes under `memprof test` than by itself, and how often its
//! verdict is right.

mod accuracy;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use xtask::dist::{self, dist};
use xtask::packages;
use xtask::run::{root, run};

use crate::limits::Measurements;
use crate::ratios::Ratios;

const ROUNDS: usize = 9;

/// Wide: the run time counts here, and a budget that holds is what CI pays for each time.
const BUDGET: &str = "tolerance = \"50%\"\npeak = 1\nallocated = 1\n";

/// The programs with which the tests of the gate catch growth.
const SOURCES: &str = "outside/memprof-cli/tests/fixtures/gate";

/// Language, command, and hundreds of records, with which it takes one to three seconds.
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

/// Measures and prints.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    packages::require(packages::TEST)?;
    build()?;
    let place = tempfile::tempdir()?;
    let nothing = Pairs::of(&["/bin/true"], place.path())?;
    println!(
        "memprof test adds {:.0} ms to a program that does nothing",
        1e3 * (median(&nothing.gated) - median(&nothing.bare))
    );
    for (language, command, records) in PROGRAMS {
        let of_it = || (*language).to_owned();
        let pairs = Pairs::of(&[command, &[*records][..]].concat(), place.path());
        let pairs = pairs.with_context(of_it)?;
        let ratios = pairs.ratios();
        figures.record(
            &format!("run time under memprof test / bare, {language}"),
            ratios.median(),
            format_args!("{ratios}; bare {:.2} s", median(&pairs.bare)),
        )?;
        accuracy::measure(language, command, place.path(), figures).with_context(of_it)?;
    }
    Ok(())
}

/// `memprof test` with the budget that lies in `place`.
fn gate(place: &Path, options: &[&str], command: &[&str]) -> Command {
    let mut gate = Command::new(dist().join("bin/memprof"));
    gate.args(["test", "--budget"]).arg(budget(place));
    gate.args(options).arg("--").args(command);
    gate.current_dir(root()).stdout(Stdio::null());
    gate
}

fn budget(place: &Path) -> PathBuf {
    place.join("budget.toml")
}

fn build() -> Result<()> {
    let cpp = format!("{SOURCES}/growth.cc");
    dist::compile("c++", &cpp, "bench/growth_cpp", &[])?;
    let mut rustc = Command::new("rustc");
    rustc.args(["-g", "-O"]).current_dir(root());
    rustc.arg(format!("{SOURCES}/growth.rs"));
    run(rustc.arg("-o").arg(dist().join("bench/growth_rust")))
}

/// The seconds of each round, with the gate and without it.
struct Pairs {
    bare: Vec<f64>,
    gated: Vec<f64>,
}

impl Pairs {
    fn of(command: &[&str], place: &Path) -> Result<Self> {
        fs::write(budget(place), BUDGET)?;
        let gate = |options: &[&str]| gate(place, options, command);
        // The first runs of both, which also read the files from the disk.
        seconds(&mut gate(&["--update", "--runs", "1"]))?;
        let bare = || {
            let mut bare = Command::new(command[0]);
            bare.args(&command[1..]);
            bare.current_dir(root()).stdout(Stdio::null());
            bare
        };
        seconds(&mut bare())?;
        let mut pairs = Self {
            bare: Vec::new(),
            gated: Vec::new(),
        };
        for round in 0..ROUNDS {
            // What slows the machine down for a while falls on both alike.
            if round % 2 == 0 {
                pairs.bare.push(seconds(&mut bare())?);
                pairs.gated.push(seconds(&mut gate(&[]))?);
            } else {
                pairs.gated.push(seconds(&mut gate(&[]))?);
                pairs.bare.push(seconds(&mut bare())?);
            }
        }
        Ok(pairs)
    }

    fn ratios(&self) -> Ratios {
        let rounds = self.gated.iter().zip(&self.bare);
        let ratios: Vec<f64> = rounds.map(|(gated, bare)| gated / bare).collect();
        Ratios::of(&ratios)
    }
}

/// From the start of a command to its end.
fn seconds(command: &mut Command) -> Result<f64> {
    let begun = Instant::now();
    run(command)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn median(seconds: &[f64]) -> f64 {
    Ratios::of(seconds).median()
}
