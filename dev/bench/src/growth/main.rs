//! `cargo xtask bench scale`: measures memprof's commands at three sizes of their input, ×1, ×4 and ×16, beside their
//! peers. With `--short`, smaller sizes and only counts of reads. Those of `ps --all` contain other processes of the
//! machine, and a busy machine polls more often.

mod case;
mod dump;
mod exponent;
mod measurement;
mod usage;

use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use xtask::run::project_root;

use crate::case::GrowthCase;
use crate::measurement::measure_case;

const USAGE: &str = "usage: cargo xtask bench scale [--short] [WORD OF A CASE'S NAME…]";

/// Measures the cases. Exits with 1 if a limit is broken, and with 2 if a measurement fails. The other two kinds of
/// arguments are for the processes that scripts of the cases start.
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.as_slice() {
        [role, command @ ..] if role == usage::MEASURE => {
            usage::run_and_print_usage(command).map(|()| true)
        }
        [role, stacks, seed] if role == "--dump" => print_dump(stacks, seed).map(|()| true),
        _ => measure_cases(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("growth: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Writes a generated dump to stdout. Both arguments are numbers: of the stacks, and the seed.
fn print_dump(stacks: &str, seed: &str) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, stdout().lock());
    dump::write_dump(stacks.parse()?, seed.parse()?, &mut out)?;
    Ok(out.flush()?)
}

/// Measures and prints the cases whose names contain a word of `args`, or all cases if there is no word. Returns
/// whether all limits hold.
fn measure_cases(args: &[String]) -> Result<bool> {
    let directory = growth_directory();
    let (options, words): (Vec<_>, Vec<_>) = args.iter().partition(|arg| arg.starts_with('-'));
    let is_short = match options.as_slice() {
        [] => false,
        [option] if *option == "--short" => true,
        [option, ..] => bail!("unknown argument {option:?}\n{USAGE}"),
    };
    let cases = GrowthCase::read_all(&directory.join("growth.toml"))?;
    let is_wanted = |case: &&GrowthCase| {
        words.is_empty() || words.iter().any(|word| case.name.contains(word.as_str()))
    };
    let wanted: Vec<_> = cases.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
        bail!("no case {words:?}\n{USAGE}\ncases:\n{}", names.join("\n"));
    }
    let mut broken = Vec::new();
    for case in wanted {
        let measured = measure_case(case, is_short).with_context(|| case.name.clone())?;
        println!("{measured}");
        broken.extend(measured.broken_limits());
    }
    for line in &broken {
        println!("BROKEN: {line}");
    }
    Ok(broken.is_empty())
}

/// Directory of the file of cases, `growth.toml`, and of the program that they ask about.
fn growth_directory() -> PathBuf {
    project_root().join("dev/bench/growth")
}
