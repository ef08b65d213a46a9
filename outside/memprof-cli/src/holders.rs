//! `memprof holders`: shows which holders keep the memory of a running process alive.

mod census;
mod page;
mod rows;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use memprof_leaks::{
    AnalysisOptions, Detail, HeapObjectKind, Holding, Method, find_process_holders,
};
use memprof_report::compile_pattern;
use regex::Regex;
use serde::Serialize;

use self::page::build_page;
use self::rows::{
    ClassRow, HolderRow, HolderStep, amounts_held_by_memprof, class_rows, largest_holder_rows,
    row_for_object, rows_by_kind, sampled_rows,
};

use crate::analysis_summary::{AnalysisSummary, analyze, parse_memory_amount};
use crate::exit::{NO_DATA, Outcome, USAGE, with_exit_code};
use crate::output;
use crate::process_names::describe_process;
use crate::quantities::format_size;
use crate::result_output::{JSON_HELP, ResultFormat, ResultOutput};

/// Show what keeps the memory of a process alive: variables, stacks and other memory
///
/// The process is copied as for `memprof leaks --prove`. A holder is shown with all objects that are reachable only
/// through it: they would be free without it. Objects that several hold are shown below the nearest holder, marked
/// "others hold it too". Variables come first: what a variable reaches is not shown below a stack, other memory or a
/// register. Objects are shown by class (C++ with virtual functions) or type (Python), else by size. A variable of a
/// Python module, or an attribute of a class in it, is shown by its name: app.CACHE.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("which").args(["class", "size", "stack", "address", "census"]))]
pub(crate) struct HoldersArgs {
    /// The process: a pid, a name or container:NAME
    #[arg(value_name = "TARGET", value_parser = crate::process_arg::parse_process)]
    pid: u32,

    /// Show what holds the objects of classes or types that this regular expression matches
    #[arg(long = "class", value_name = "RE", visible_alias = "type")]
    class: Option<String>,

    /// Show what holds the objects of this size in bytes; above 1 KiB, of all sizes up to the same power of two
    #[arg(long, value_name = "BYTES")]
    size: Option<u64>,

    /// Show what holds the objects that were allocated through a function which this regular expression matches
    ///
    /// Only objects are known that a profiler in the process sampled, jemalloc's or memprof's (`memprof attach`,
    /// `memprof activate`): each stands for others that were allocated in the same way.
    #[arg(long, value_name = "RE")]
    stack: Option<String>,

    /// Show what holds the object in which this hexadecimal address lies
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    address: Option<u64>,

    /// Count the objects of a Python process by type, in bytes as Python's getsizeof has them
    #[arg(long)]
    census: bool,

    /// Show this many holders; with --census, this many types
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Stop the process for this time at most; memprof estimates it first, and refuses if it is longer
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = crate::process_arg::parse_duration)]
    max_pause: Duration,

    /// Use this much memory at most, for example 512MiB [default: 12 % of the process's memory, at least 128MiB]
    ///
    /// If that is not enough to find all holders of an object, one shortest path to it is shown, and marked as such.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_amount)]
    max_memory: Option<u64>,

    #[arg(long, help = JSON_HELP)]
    json: bool,

    /// Output format [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<ResultFormat>,

    /// Write the output to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Open it as an HTML page in a browser; without a browser, print the page's path
    #[arg(long)]
    open: bool,
}

/// Parses a hexadecimal address, with or without `0x`.
fn parse_address(text: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16)
}

/// The objects whose holders are shown.
enum ObjectFilter {
    Largest,
    Class(Regex),
    Size(u64),
    Stack(Regex),
    /// The object that contains this address.
    Object(u64),
}

impl ObjectFilter {
    /// Builds the filter from the options, at most one of which clap accepts. Fails for an invalid regular expression.
    fn from_args(args: &HoldersArgs) -> anyhow::Result<Self> {
        let expression = |text: &str| {
            compile_pattern(text).map_err(|error| with_exit_code(USAGE, error.to_string()))
        };
        Ok(match (&args.class, args.size, &args.stack, args.address) {
            (Some(class), ..) => Self::Class(expression(class)?),
            (_, Some(size), ..) => Self::Size(size),
            (.., Some(function), _) => Self::Stack(expression(function)?),
            (.., Some(address)) => Self::Object(address),
            _ => Self::Largest,
        })
    }

    /// Returns the additional data that the analysis must collect for the filter.
    fn required_detail(&self) -> Detail {
        match self {
            Self::Stack(_) => Detail::Samples,
            Self::Object(address) => Detail::Object(*address),
            Self::Largest | Self::Class(_) | Self::Size(_) => Detail::None,
        }
    }

    /// Returns the error text if no object matches. `sampled` is `None` unless objects were selected by stack.
    fn no_match_message(&self, sampled: Option<&SampledSummary>) -> String {
        match (self, sampled) {
            (Self::Object(address), _) => {
                format!("no object that is held contains the address {address:#x}")
            }
            (Self::Stack(function), Some(sampled)) => format!(
                "no function of the stacks of {} sampled objects matches {function}; `memprof dump` and \
                 `memprof report` list functions",
                sampled.objects
            ),
            _ => "no object that is held matches; `memprof holders PID` lists classes and sizes"
                .to_owned(),
        }
    }
}

/// Output of `memprof holders --json`.
#[derive(Serialize)]
struct HoldersOutput<'a> {
    status: &'static str,
    text: String,
    #[serde(flatten)]
    analysis: AnalysisSummary<'a>,
    method: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampled: Option<SampledSummary>,
    holders: Vec<HolderRow>,
    classes: Vec<ClassRow>,
    /// Objects that memprof's plugin holds for itself, which are in no row.
    memprof: OwnTotals,
}

/// Objects of memprof's own.
#[derive(Serialize)]
struct OwnTotals {
    objects: u64,
    bytes: u64,
}

/// Numbers of the objects whose stacks a profiler in the process recorded.
#[derive(Serialize)]
struct SampledSummary {
    /// Number of such objects that are held.
    objects: usize,
    /// Number of those whose stack matches.
    matching: u64,
}

/// Runs `memprof holders`: finds the holders of the selected objects, and writes them as rows, or counts all objects
/// with `--census`. Fails with `NO_DATA` if no object matches.
pub(crate) fn run(args: &HoldersArgs) -> Outcome {
    let filter = ObjectFilter::from_args(args)?;
    let output = ResultOutput::new(args.format, args.json, args.output.as_deref(), args.open)?;
    let options = AnalysisOptions {
        max_pause: args.max_pause,
        max_memory: args.max_memory,
    };
    if args.census {
        return census::run(args, options, &output);
    }
    let holding = analyze(args.pid, options, |options, progress| {
        find_process_holders(args.pid, filter.required_detail(), options, progress)
    })?;
    let top = output.row_count(args.top);
    let groups = &holding.groups;
    let mut sampled = None;
    let rows = match &filter {
        ObjectFilter::Largest => largest_holder_rows(groups, top),
        ObjectFilter::Class(class) => rows_by_kind(groups, top, |kind| match kind {
            HeapObjectKind::Class(name) => class.is_match(name),
            HeapObjectKind::Size(_) => false,
        }),
        ObjectFilter::Size(size) => {
            let kind_of_size = HeapObjectKind::for_size(*size);
            rows_by_kind(groups, top, |kind| *kind == kind_of_size)
        }
        ObjectFilter::Stack(function) => {
            let samples = holding.samples.as_ref();
            let samples = samples.context("samples were asked for")?;
            let found =
                samples.select_by_stack(|stack| stack.iter().any(|name| function.is_match(name)));
            sampled = Some(SampledSummary {
                objects: samples.count(),
                matching: found.iter().map(|sampling| sampling.own.objects).sum(),
            });
            sampled_rows(groups, top, found)
        }
        ObjectFilter::Object(_) => holding.object.iter().map(row_for_object).collect(),
    };
    if rows.is_empty() {
        for warning in &holding.report.warnings {
            output::note(warning);
        }
        return Err(with_exit_code(
            NO_DATA,
            filter.no_match_message(sampled.as_ref()),
        ));
    }
    let (objects, bytes) = amounts_held_by_memprof(groups);
    let mut reply = HoldersOutput {
        status: "ok",
        text: String::new(),
        analysis: AnalysisSummary::new(args.pid, &holding.report),
        method: match holding.method {
            Method::Dominators => "dominators",
            Method::ShortestPath => "shortest_path",
        },
        sampled,
        holders: rows,
        classes: class_rows(groups),
        memprof: OwnTotals { objects, bytes },
    };
    let is_overview = matches!(filter, ObjectFilter::Largest);
    reply.text = format_text(&reply, &holding, top, is_overview);
    output.write(&reply, &reply.text, || {
        build_page(&reply, &holding, is_overview)
    })?;
    Ok(0.into())
}

/// Returns the lines above the table: the totals with the method, the number of matching samples, and memprof's own
/// objects, if any.
fn summary_lines(reply: &HoldersOutput<'_>, holding: &Holding) -> Vec<String> {
    // Group 0 is the process, which holds all objects.
    let all = &holding.groups[0];
    let name = describe_process(reply.analysis.pid);
    let explanation = match holding.method {
        Method::Dominators => "each is reachable only through its holder, unless marked",
        Method::ShortestPath => {
            "one shortest path to each object, others may hold it too (a larger --max-memory shows all)"
        }
    };
    let mut lines = vec![format!(
        "{name}: {} in {} objects are held; {explanation}",
        format_size(all.held_bytes),
        all.held_objects
    )];
    if let Some(SampledSummary { objects, matching }) = reply.sampled {
        lines.push(format!(
            "{matching} of {objects} sampled objects have such a stack; each stands for others, of which no stack is known"
        ));
    }
    if reply.memprof.objects > 0 {
        lines.push(format!(
            "{} in {} objects are memprof's own, in no row",
            format_size(reply.memprof.bytes),
            reply.memprof.objects
        ));
    }
    lines
}

/// Formats the output for people. An overview (`is_overview`) has also a table of at most `top` classes.
fn format_text(
    reply: &HoldersOutput<'_>,
    holding: &Holding,
    top: usize,
    is_overview: bool,
) -> String {
    let mut lines = summary_lines(reply, holding);
    lines.push(format!("\n{:>12} {:>10}  holder", "held", "objects"));
    for row in &reply.holders {
        let names: Vec<_> = row.path.iter().map(holder_step_text).collect();
        let names = match is_overview {
            true => names[0].clone(),
            false => names.join(" <- "),
        };
        let (bytes, indent) = (format_size(row.bytes), 2 * row.depth);
        lines.push(format!(
            "{bytes:>12} {:>10}  {:indent$}{names}",
            row.objects, ""
        ));
    }
    if is_overview {
        lines.push(format!(
            "\n{:>12} {:>12} {:>10}  class or size",
            "held", "of these", "objects"
        ));
        let classes = reply.classes.iter().take(top);
        lines.extend(classes.map(|class| {
            let (held, bytes) = (format_size(class.held_bytes), format_size(class.bytes));
            format!(
                "{held:>12} {bytes:>12} {:>10}  {}",
                class.objects, class.name
            )
        }));
    }
    lines.extend(reply.analysis.closing_lines());
    lines.join("\n")
}

/// Returns the name of a holder or object, with its address if that is known, and with a mark if others hold the object
/// too.
fn holder_step_text(step: &HolderStep) -> String {
    let at = step
        .address
        .as_ref()
        .map(|address| format!(" at {address}"));
    let others = if step.is_shared {
        " (others hold it too)"
    } else {
        ""
    };
    format!("{}{}{others}", step.name, at.unwrap_or_default())
}
