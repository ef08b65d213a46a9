//! `memprof test`: runs a command and fails if it takes more memory than its budget allows.
//!
//! Totals are exact counts of every allocation; the functions that allocate are estimated from samples.

mod budget;
mod budget_file;
mod check_text;
mod command;
mod findings;
mod input;
mod junit;
mod measure;
mod measurement;
mod render;
mod repository_path;
mod stacks;
mod verdict;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;

use crate::exit::{FAILED, NO_DATA, OVER_BUDGET, Outcome, USAGE, error_chain, with_exit_code};
use crate::output;
use budget::Budget;
use budget_file::BudgetFile;
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

    /// Run the command this many times, at most 99, and take the median [default: 1; 5 with --update]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: Option<u8>,

    /// Output format [default: github if `GITHUB_ACTIONS` is `true`, else text]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,

    /// Write the output to this file, whole or not at all, and print text [default: standard output]
    #[arg(short, long, value_name = "FILE", conflicts_with = "update")]
    output: Option<PathBuf>,

    /// Exit with 5 if the limit of a function matches no function that was sampled
    #[arg(long)]
    strict: bool,

    /// One sample per this many allocated bytes, a power of two from 1KiB to 16MiB; a smaller one is more exact for
    /// functions, and slower [default: 64KiB]
    #[arg(long, visible_alias = "interval", value_name = "SIZE", conflicts_with = "lg_sample", value_parser = crate::run::parse_interval)]
    sample_interval: Option<u8>,

    /// One sample per 2^N allocated bytes, in place of --sample-interval; N is 10 to 24
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(10..=24))]
    lg_sample: Option<u8>,

    /// The plugin's file [default: the one that is installed with this program]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["COMMAND", "ARGS"])]
    command: Vec<OsString>,
}

/// Output format. For all but the first two, paths are those of the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// Text for people
    Text,
    /// JSON for scripts
    Json,
    /// Text, and each broken budget as a workflow command of GitHub Actions
    Github,
    /// Report for GitLab's Code Quality
    Gitlab,
    // No doc comment: the name would need backticks there.
    #[value(help = "JUnit's XML, with a test case for each limit")]
    Junit,
    /// Log of SARIF 2.1.0, for code scanning
    Sarif,
}

/// log2 of the sample interval in bytes, unless it is given: 64 KiB.
const DEFAULT_LG_SAMPLE: u8 = 16;

impl TestArgs {
    /// Returns log2 of the sample interval in bytes: that of the options, else [`DEFAULT_LG_SAMPLE`].
    fn lg_sample(&self) -> u8 {
        let given = self.sample_interval.or(self.lg_sample);
        given.unwrap_or(DEFAULT_LG_SAMPLE)
    }

    /// Returns whether standard output is one document, so that the command's own output goes to standard error.
    fn prints_document(&self) -> bool {
        let is_document = match self.format {
            None | Some(FormatArg::Text | FormatArg::Github) => false,
            Some(FormatArg::Json | FormatArg::Gitlab | FormatArg::Junit | FormatArg::Sarif) => true,
        };
        is_document && self.report_file().is_none()
    }

    /// Returns the file of the report. `None` if the report goes to standard output.
    fn report_file(&self) -> Option<&Path> {
        let output = self.output.as_deref();
        output.filter(|path| *path != Path::new("-"))
    }
}

/// Runs `memprof test`: measures the command, then writes the budget or compares with it. The exit code says whether a
/// limit is exceeded, the report could not be written or, with `--strict`, a limit matches no function.
pub(crate) fn run(args: &TestArgs) -> Outcome {
    let known = BudgetFile::read(&args.budget)?;
    let runs = match (args.runs, args.update) {
        (Some(runs), _) => usize::from(runs),
        (None, true) => UPDATE_RUNS,
        (None, false) => 1,
    };
    if !args.update {
        require_limits(args, known.as_ref().map(|(_, budget)| budget))?;
    }
    let mut input = Input::for_runs(runs)?;
    let all: Vec<Measurement> = (0..runs)
        .map(|_| {
            input.rewind()?;
            measure::measure_command(args)
        })
        .collect::<anyhow::Result<_>>()?;
    // Only an update needs the result, but `median_run` takes the runs.
    let counted = all.iter().try_for_each(Measurement::require_all_counted);
    let measured = measurement::median_run(all).context("nothing was run")?;
    for note in &measured.notes {
        output::note(note);
    }
    let (file, budget) = match known {
        Some(known) => known,
        None => (BudgetFile::template()?, Budget::default()),
    };
    if args.update {
        counted?;
        let stacks = Stacks::read(&measured)?;
        let budget = Budget::from_measurement(&measured, &stacks, budget);
        let verdict = BudgetVerdict::new(&measured, &stacks, &budget);
        note_unmatched_limits(&verdict, "it stays as it was");
        let text = file.into_updated_text(&budget);
        output::publish_file(&args.budget, |out| Ok(out.write_all(text.as_bytes())?))?;
        output::print(&render::format_update(&args.budget, &budget, &measured));
        return Ok(ExitCode::SUCCESS);
    }
    let verdict = BudgetVerdict::new(&measured, &read_needed_stacks(&measured, &budget)?, &budget);
    let code = match (verdict.is_broken(), args.strict) {
        (true, _) => OVER_BUDGET,
        (false, true) if verdict.unmatched_checks().next().is_some() => NO_DATA,
        (false, _) => 0,
    };
    note_unmatched_limits(&verdict, "it checks nothing");
    let Err(error) = write_verdict(&verdict, &file, args) else {
        return Ok(code.into());
    };
    // The verdict counts, whether its report could be written or not.
    output::print_stderr(&format!("memprof: {}", output::error_text(&error)));
    Ok(code.max(FAILED).into())
}

/// Formats the verdict as `--format` requests, and prints it. If `--output` names a file, writes the report to the
/// file, and prints the verdict as text.
fn write_verdict(
    verdict: &BudgetVerdict,
    file: &BudgetFile,
    args: &TestArgs,
) -> anyhow::Result<()> {
    let report = render::format_verdict(verdict, file, args)?;
    match args.report_file() {
        None => output::print(&report),
        Some(path) => {
            output::print(&render::format_text(verdict));
            output::publish_file(path, |out| Ok(writeln!(out, "{}", report.trim_end())?))?;
        }
    }
    Ok(())
}

/// Fails if the budget limits nothing, because every run would pass. `budget` is `None` if there is no budget file.
fn require_limits(args: &TestArgs, budget: Option<&Budget>) -> anyhow::Result<()> {
    let path = args.budget.display();
    let message = match budget {
        Some(budget) if budget.limits_anything() => return Ok(()),
        Some(_) => format!(
            "{path} limits nothing, so every run would pass: set peak, allocated, [functions.peak] or \
             [functions.allocated]; --update writes the first two"
        ),
        None => format!("no budget is at {path}; --update writes one"),
    };
    Err(with_exit_code(USAGE, message))
}

/// Prints a note for each limit of a function that no sample has. `consequence` ends the note's sentence.
fn note_unmatched_limits(verdict: &BudgetVerdict, consequence: &str) {
    for check in verdict.unmatched_checks() {
        output::note(&format!(
            "no sample has the function of the limit {}: it was renamed or inlined, or allocates too little for \
             --sample-interval; {consequence}",
            check_text::limit_name(check)
        ));
    }
}

/// Reads the stacks that a verdict needs: all if functions have limits or a total is exceeded, else none. If functions
/// have limits, fails if the stacks cannot be read. If only an exceeded total needs the stacks and they cannot be read,
/// prints a note and returns none.
fn read_needed_stacks(measured: &Measurement, budget: &Budget) -> anyhow::Result<Stacks> {
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
