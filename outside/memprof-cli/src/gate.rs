//! `memprof test`: runs a command and fails where it takes more memory than its budget allows.
//!
//! Totals are counted, each allocation of them; who takes it is estimated from samples.

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

/// An update takes the median of so many runs, and says how far they lie apart.
const RUNS_OF_UPDATE: usize = 5;

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

    /// What to print: annotations for GitHub where `GITHUB_ACTIONS` is set, else text
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

pub(crate) fn run(args: &TestArgs) -> Outcome {
    let known = Budget::read(&args.budget)?;
    let runs = match (args.runs, args.update) {
        (Some(runs), _) => usize::from(runs),
        (None, true) => RUNS_OF_UPDATE,
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
    let measured = measurement::median(all).context("nothing was run")?;
    for note in &measured.notes {
        output::note(note);
    }
    if args.update {
        let stacks = Stacks::of(&measured)?;
        let budget = Budget::of(&measured, &stacks, known.unwrap_or_default());
        output::publish(&args.budget, |out| {
            Ok(out.write_all(budget.text().as_bytes())?)
        })?;
        output::print(&render::updated(&args.budget, &budget, &measured));
        return Ok(ExitCode::SUCCESS);
    }
    let budget = known.unwrap_or_default();
    let verdict = BudgetVerdict::of(&measured, &stacks(&measured, &budget)?, &budget);
    output::print(&render::verdict(&verdict, args)?);
    Ok(match verdict.is_broken() {
        true => OVER_BUDGET.into(),
        false => ExitCode::SUCCESS,
    })
}

/// The stacks that a verdict needs: none where only totals are limited, and kept.
fn stacks(measured: &Measurement, budget: &Budget) -> anyhow::Result<Stacks> {
    if budget.limits_functions() {
        return Stacks::of(measured);
    }
    if !budget.is_exceeded_by(measured) {
        return Ok(Stacks::default());
    }
    // Totals are exact without names, so the budget is broken all the same.
    Ok(Stacks::of(measured).unwrap_or_else(|error| {
        output::note(&format!(
            "who broke the budget is not known: {}",
            error_chain(&error)
        ));
        Stacks::default()
    }))
}
