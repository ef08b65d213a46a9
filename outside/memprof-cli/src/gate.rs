//! `memprof test`: runs a command and fails if it takes more memory than its budget allows.
//!
//! Totals are exact counts of every allocation; the functions that allocate are estimated from samples.

mod budget;
mod command;
mod input;
mod measure;
mod measurement;
mod render;
mod stacks;
mod verdict;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;

use crate::exit::{OVER_BUDGET, Outcome, USAGE, error_chain, with_exit_code};
use crate::output;
use budget::Budget;
use input::Input;
use measurement::Measurement;
use stacks::Stacks;
use verdict::BudgetVerdict;

/// Number of runs of an update, which takes their median and reports their range.
const UPDATE_RUNS: usize = 5;

/// Run a command, and fail if it takes more memory than its budget allows
///
/// Counts every allocation of the command and of the programs that it executes: all bytes that they allocate, and
/// the most bytes that are live at the same time in one of them. Samples show which functions allocate them.
#[derive(clap::Args, Debug)]
pub(crate) struct TestArgs {
    /// The budget: a TOML file to be committed with the code
    #[arg(long, value_name = "FILE")]
    budget: PathBuf,

    /// Write the measured values to the budget; keep its `tolerance` and the set of functions that have a limit
    #[arg(long)]
    update: bool,

    /// Run N times and take the median, for a command that varies [default: 1; 5 with --update]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: Option<u8>,

    /// Output format: annotations for GitHub if `GITHUB_ACTIONS` is set, else text
    #[arg(long, value_enum)]
    format: Option<FormatArg>,

    /// One sample per 2^N allocated bytes; a smaller N is more exact for functions, and slower
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(10..=24))]
    lg_sample: u8,

    /// The plugin's file; by default the one that is installed with this program
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// For people
    Text,
    /// For programs; what the command writes to standard output goes to standard error
    Json,
    /// Text, and each broken budget as a workflow command of GitHub Actions
    Github,
}

/// Runs `memprof test`: measures the command, then writes the budget or compares with it.
pub(crate) fn run(args: &TestArgs) -> Outcome {
    let known = Budget::read(&args.budget)?;
    let runs = match (args.runs, args.update) {
        (Some(runs), _) => usize::from(runs),
        (None, true) => UPDATE_RUNS,
        (None, false) => 1,
    };
    if known.is_none() && !args.update {
        let message = format!(
            "no budget is at {}; --update writes one",
            args.budget.display()
        );
        return Err(with_exit_code(USAGE, message));
    }
    let mut input = Input::for_runs(runs)?;
    let all: Vec<Measurement> = (0..runs)
        .map(|_| {
            input.rewind()?;
            measure::measure(args)
        })
        .collect::<anyhow::Result<_>>()?;
    let counted = all.iter().try_for_each(Measurement::require_counted);
    let measured = measurement::median(all).context("nothing was run")?;
    for note in &measured.notes {
        output::note(note);
    }
    if args.update {
        counted?;
        let stacks = Stacks::read(&measured)?;
        let budget = Budget::from_measurement(&measured, &stacks, known.unwrap_or_default());
        output::publish(&args.budget, |out| {
            Ok(out.write_all(budget.to_toml().as_bytes())?)
        })?;
        output::print(&render::format_update(&args.budget, &budget, &measured));
        return Ok(ExitCode::SUCCESS);
    }
    let budget = known.unwrap_or_default();
    let verdict = BudgetVerdict::new(&measured, &needed_stacks(&measured, &budget)?, &budget);
    output::print(&render::format_verdict(&verdict, args)?);
    Ok(match verdict.is_broken() {
        true => OVER_BUDGET.into(),
        false => ExitCode::SUCCESS,
    })
}

/// Reads the stacks that a verdict needs: none if only totals are limited, and none is exceeded.
fn needed_stacks(measured: &Measurement, budget: &Budget) -> anyhow::Result<Stacks> {
    if budget.limits_functions() {
        return Stacks::read(measured);
    }
    if !budget.is_exceeded_by(measured) {
        return Ok(Stacks::default());
    }
    // Totals are exact without symbols, so the budget is exceeded even if these cannot be read.
    Ok(Stacks::read(measured).unwrap_or_else(|error| {
        output::note(&format!(
            "who broke the budget is not known: {}",
            error_chain(&error)
        ));
        Stacks::default()
    }))
}
