//! `memprof leaks --prove`: lists the objects of a running process that nothing points to.

mod arguments;
mod at_exit_sampler;
mod certainty;
mod forwarder;
mod origin_output;
mod page;
mod sampled_search;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context;
use memprof_leaks::exit_stop::{self, RunOutcome};
use memprof_leaks::{AnalysisOptions, LeakGroup, Proof, prove_leaks, prove_leaks_at_exit};
use memprof_ptrace::pidfd::PidFd;
use serde::Serialize;

pub(crate) use self::arguments::ProveArgs;
use self::at_exit_sampler::preload_sampler;
use self::certainty::Certainty;
use self::forwarder::{Recipient, SignalForwarder};
use self::origin_output::OriginOutput;
use self::page::build_page;
use self::sampled_search::sample_and_prove;
use crate::analysis_summary::{AnalysisSummary, PhaseProgress, analyze, finish_analysis};
use crate::command_group::CommandGroup;
use crate::exit::{FAILED, Outcome, UNAVAILABLE, USAGE, with_exit_code};
use crate::interrupts::{Interrupts, signal_exit_code};
use crate::process_names::describe_process;
use crate::quantities::format_size;
use crate::record::SamplingOptions;
use crate::result_output::ResultOutput;
use crate::stack_lines::format_frames;
use crate::{exit, output, own_heap, signals};

/// Most leaked bytes that are called negligible, if they are also less than a thousandth of the resident memory.
const NEGLIGIBLE_BYTES: u64 = 64 << 10;

/// log2 of the default sample interval of `--at-exit`, in bytes.
const EVERY_ALLOCATION: u8 = 0;

/// Output of `memprof leaks --prove --json`.
#[derive(Serialize)]
struct ProveOutput<'a> {
    status: &'static str,
    text: String,
    certainty: Certainty,
    #[serde(flatten)]
    analysis: AnalysisSummary<'a>,
    leaked: LeakedTotals<'a>,
}

/// Totals and groups of the leaked objects.
#[derive(Serialize)]
struct LeakedTotals<'a> {
    objects: u64,
    bytes: u64,
    by: Vec<LeakedGroup<'a>>,
}

/// Leaked objects of one kind.
#[derive(Serialize)]
struct LeakedGroup<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
    /// Functions through which the objects were allocated, root first; `None` unless a profiler sampled them.
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<Vec<&'a str>>,
    /// Function to which the stack is attributed.
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
    /// Functions that allocated the sampled objects of the same class and size, if these have no stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    sampled_origin: Option<OriginOutput<'a>>,
    size: u64,
    objects: u64,
    bytes: u64,
    example: String,
}

/// Runs `memprof leaks --prove`: on a process, which is sampled first with `--for`, or on the command of `--at-exit`.
/// With `--fail`, errors do not have the exit code 1, because it says that objects are leaked.
pub(crate) fn run(args: &ProveArgs, top: usize, output: ResultOutput<'_>) -> Outcome {
    match run_search(args, top, output) {
        Err(error) if args.fail => Err(without_leak_exit_code(error)),
        // Lost output becomes FAILED otherwise, which says that objects are leaked.
        Ok(ExitCode::SUCCESS) if args.fail && !memprof_output::is_stdout_complete() => {
            Ok(UNAVAILABLE.into())
        }
        outcome => outcome,
    }
}

/// Replaces the exit code [`FAILED`] of an error by [`UNAVAILABLE`], because with `--fail` the former says that objects
/// are leaked. Keeps other exit codes.
fn without_leak_exit_code(error: anyhow::Error) -> anyhow::Error {
    match exit::code_number_of_error(&error) {
        FAILED => with_exit_code(UNAVAILABLE, exit::error_chain(&error)),
        _ => error,
    }
}

/// Searches the process or command like [`run`], but does not change the exit codes of errors for `--fail`.
fn run_search(args: &ProveArgs, top: usize, output: ResultOutput<'_>) -> Outcome {
    let options = AnalysisOptions {
        max_pause: args.max_pause,
        max_memory: args.max_memory,
    };
    let Some(pid) = args.pid else {
        return prove_command(args, options, top, output);
    };
    match args.duration {
        Some(duration) => {
            let sampling = SamplingOptions {
                duration,
                lg_sample: args.sample_interval,
                ..SamplingOptions::default()
            };
            prove_with_sampling(args, pid, &sampling, options, top, output)
        }
        None => {
            let proof = analyze(pid, options, |options, progress| {
                prove_leaks(pid, options, progress)
            })?;
            show_proof(args, pid, &proof, top, output)
        }
    }
}

/// Samples a process, searches it for leaks, and shows the result. Prints a note for each change of the process that
/// was not undone. A signal ends the sampling early, and determines the exit code.
fn prove_with_sampling(
    args: &ProveArgs,
    pid: u32,
    sampling: &SamplingOptions,
    options: AnalysisOptions,
    top: usize,
    output: ResultOutput<'_>,
) -> Outcome {
    let interrupts = Interrupts::start_watching()?;
    let proven = sample_and_prove(pid, sampling, options, &interrupts);
    for change in interrupts.take_changes() {
        output::note(&change);
    }
    let shown = proven.and_then(|proven| {
        let code = show_proof(args, pid, &proven.proof, top, output)?;
        proven.detach_error.map_or(Ok(code), Err)
    });
    match (interrupts.ending_signal().map(signal_exit_code), shown) {
        (Some(code), Ok(_)) => Ok(code.into()),
        (Some(code), Err(error)) => Err(with_exit_code(code, exit::error_chain(&error))),
        (None, shown) => shown,
    }
}

/// Writes the result of a search. The exit code is 0, or with `--fail` the result of [`exit_code_for_fail_option`].
fn show_proof(
    args: &ProveArgs,
    pid: u32,
    proof: &Proof,
    top: usize,
    output: ResultOutput<'_>,
) -> Outcome {
    let reply = build_output(pid, proof, top);
    output.write(&reply, &reply.text, || build_page(&reply))?;
    let failure = if args.fail {
        exit_code_for_fail_option(&reply)
    } else {
        0
    };
    Ok(ExitCode::from(failure))
}

/// Returns the exit code with `--fail`: 1 for leaks; without leaks 4 if some objects were not searched, else 0.
fn exit_code_for_fail_option(reply: &ProveOutput<'_>) -> u8 {
    match reply.leaked.objects {
        0 if reply.certainty == Certainty::Unknown => UNAVAILABLE,
        0 => 0,
        _ => FAILED,
    }
}

/// Runs a command, and searches it for leaks at its exit. The exit code is that of the command; with `--fail`, it is
/// not 0 if objects are leaked or the command was not searched. A result as text goes to standard error, because
/// standard output is the command's.
fn prove_command(
    args: &ProveArgs,
    options: AnalysisOptions,
    top: usize,
    output: ResultOutput<'_>,
) -> Outcome {
    let [program, program_args @ ..] = args.command.as_slice() else {
        return Err(with_exit_code(USAGE, "--at-exit needs a command"));
    };
    let mut command = Command::new(program);
    signals::inherit_caller_signals(command.args(program_args));
    let unsampled = match args.no_stacks {
        true => None,
        false => {
            let lg_sample = args.sample_interval.unwrap_or(EVERY_ALLOCATION);
            preload_sampler(&mut command, lg_sample).err()
        }
    };
    let group = CommandGroup::choose(&mut command)?;
    let forwarder = SignalForwarder::start()?;
    // Locked until the command runs, so that a signal in between waits for it.
    let mut recipient = forwarder.lock();
    let run = exit_stop::run_until_exit(&mut command, |pid| {
        // Before Linux 5.3, which lacks pidfd_open(2), a signal ends this program only.
        if let Ok(process) = PidFd::open(pid) {
            *recipient = Recipient::Command { process, group };
        }
        drop(recipient);
    });
    // A command that is stopped at its exit handles no signal any more.
    *forwarder.lock() = Recipient::Memprof;
    let run = run.with_context(|| format!("failed to run {}", program.display()))?;
    let exiting = match run {
        RunOutcome::AtExit(exiting) => exiting,
        RunOutcome::Exited(status) => {
            let reason = match status.signal() {
                Some(_) => "a signal ended the command",
                None => "it ended before it could be stopped",
            };
            output::note(&format!("not searched for leaks: {reason} ({status})"));
            return Ok(command_exit_code(status, args.fail, UNAVAILABLE));
        }
    };
    let pid = exiting.pid();
    // Freed blocks then no longer count towards this program's resident set.
    own_heap::make_malloc_map_large_blocks();
    let progress = PhaseProgress::default();
    let mut proof =
        prove_leaks_at_exit(&exiting, options, &|phase| progress.show_phase(pid, phase));
    if let (Ok(proof), Some(error)) = (&mut proof, unsampled)
        && !proof.leaked.is_empty()
    {
        proof
            .report
            .warnings
            .push(format!("its objects have no stacks: {error:#}"));
    }
    let failure = match finish_analysis(pid, proof) {
        Ok(proof) => {
            let reply = build_output(pid, &proof, top);
            // Standard output is the command's.
            match output.is_text_on_stdout() {
                true => output::print_stderr(&reply.text),
                false => output.write(&reply, &reply.text, || build_page(&reply))?,
            }
            exit_code_for_fail_option(&reply)
        }
        Err(error) => {
            output::note(&format!("not searched for leaks: {error}"));
            UNAVAILABLE
        }
    };
    Ok(command_exit_code(exiting.end()?, args.fail, failure))
}

/// Returns the exit code of a command as shells report it: after a signal, 128 plus the signal's number. With `--fail`
/// (`fails`), returns `failure` instead of 0.
fn command_exit_code(status: ExitStatus, fails: bool, failure: u8) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    match code.unwrap_or(FAILED.into()) {
        0 if fails => failure.into(),
        code => ExitCode::from(code as u8),
    }
}

/// Builds the output from the result of a search. Its text shows the `top` largest groups.
fn build_output(pid: u32, proof: &Proof, top: usize) -> ProveOutput<'_> {
    let sum = |amount: fn(&LeakGroup) -> u64| proof.leaked.iter().map(amount).sum();
    let groups = proof.leaked.iter().map(|group| LeakedGroup {
        class: group.class.as_deref(),
        stack: group
            .stack
            .as_ref()
            .map(|stack| stack.functions.iter().rev().map(String::as_str).collect()),
        function: group.stack.as_ref().and_then(|stack| stack.row_function()),
        sampled_origin: group.origin.as_ref().map(OriginOutput::new),
        size: group.size,
        objects: group.objects,
        bytes: group.bytes,
        example: format!("{:#x}", group.example),
    });
    let leaked = sum(|group| group.objects);
    let mut reply = ProveOutput {
        status: "ok",
        text: String::new(),
        certainty: Certainty::from_report(&proof.report, leaked),
        analysis: AnalysisSummary::new(pid, &proof.report),
        leaked: LeakedTotals {
            objects: leaked,
            bytes: sum(|group| group.bytes),
            by: groups.collect(),
        },
    };
    reply.text = format_text(&reply, top);
    reply
}

/// Returns the first line of the text and the page: how much is leaked, and how certain that is.
fn heading(reply: &ProveOutput<'_>) -> String {
    let name = describe_process(reply.analysis.pid);
    let all = reply.analysis.objects;
    let leaked = &reply.leaked;
    match (leaked.objects, reply.certainty) {
        (0, Certainty::Unknown) => format!(
            "{name}: not searched completely: the {all} objects that could be searched are held"
        ),
        (0, _) => format!("{name}: nothing is leaked: all {all} objects are held"),
        (objects, certainty) => {
            let (counted, them) = match objects {
                1 => ("1 object is".to_owned(), "it"),
                _ => (format!("{objects} objects are"), "them"),
            };
            format!(
                "{name}: {counted} {}, {}: nothing{} pointed to {them}{}",
                if certainty == Certainty::Probable {
                    "probably leaked"
                } else {
                    "leaked"
                },
                format_size(leaked.bytes),
                if certainty == Certainty::Probable {
                    " that was searched"
                } else {
                    ""
                },
                if reply.analysis.snapshots > 1 {
                    " in two snapshots"
                } else {
                    ""
                }
            ) + negligible_text(leaked.bytes, reply.analysis.rss)
        }
    }
}

/// Returns the end of the heading for a small leak: at most [`NEGLIGIBLE_BYTES`], and at most 0.1 % of `rss`, the
/// process's resident bytes. Many runtimes leak that much once, when they start, and it explains no growth. Empty for
/// larger leaks.
fn negligible_text(leaked: u64, rss: u64) -> &'static str {
    match leaked <= NEGLIGIBLE_BYTES.min(rss / 1000) {
        true => "; that is negligible, unless it grows from one search to the next",
        false => "",
    }
}

/// Formats the output for people, with at most `top` groups.
fn format_text(reply: &ProveOutput<'_>, top: usize) -> String {
    let leaked = &reply.leaked;
    let mut lines = vec![heading(reply)];
    if leaked.objects > 0 {
        lines.push(format!(
            "\n{:>12} {:>9} {:>10}  {:<14}  class",
            "leaked", "objects", "of each", "one of them"
        ));
    }
    for group in leaked.by.iter().take(top) {
        let (bytes, each) = (format_size(group.bytes), format!("{} B", group.size));
        let class = group.class.unwrap_or("-");
        lines.push(format!(
            "{bytes:>12} {:>9} {each:>10}  {:<14}  {class}",
            group.objects, group.example
        ));
        let stack = group.stack.iter().flatten().rev();
        lines.extend(format_frames(&stack.collect::<Vec<_>>()));
        let origin = group.sampled_origin.iter();
        lines.extend(origin.map(|origin| format!("    {}", origin.text())));
    }
    if leaked.by.len() > top {
        lines.push(format!(
            "({} more rows, --top shows them)",
            leaked.by.len() - top
        ));
    }
    lines.extend(reply.analysis.closing_lines());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_no_exit_code_of_leaks() {
        let check = |error, expected| {
            let text = exit::error_chain(&error);
            let changed = without_leak_exit_code(error);
            assert_eq!(exit::code_number_of_error(&changed), expected);
            assert_eq!(exit::error_chain(&changed), text);
        };
        check(
            anyhow::anyhow!("no space").context("leaks.html"),
            UNAVAILABLE,
        );
        check(with_exit_code(FAILED, "failed"), UNAVAILABLE);
        check(with_exit_code(USAGE, "one argument"), USAGE);
        check(with_exit_code(UNAVAILABLE, "refused"), UNAVAILABLE);
    }

    #[test]
    fn small_leaks_are_called_negligible() {
        let check = |leaked, rss, expected: bool| {
            assert_eq!(
                !negligible_text(leaked, rss).is_empty(),
                expected,
                "{leaked} {rss}"
            );
        };
        check(104, 50 << 20, true);
        check(64 << 10, 1 << 30, true);
        check(65 << 10, 1 << 30, false);
        check(4096, 1 << 20, false);
        check(231 << 20, 1 << 30, false);
    }
}
