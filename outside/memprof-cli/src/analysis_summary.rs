//! Summary of an analysis, for `memprof leaks --prove` and `memprof holders`.

use std::cell::RefCell;
use std::fs;
use std::time::SystemTime;

use memprof_leaks::{
    AnalysisOptions, AnalysisReport, Error, Phase, Unsearched, UnsearchedAmount, UnsearchedRole,
};
use memprof_messages::{SIZE_EXAMPLE, parse_size};
use memprof_report::{Outline, OutlinePage};
use serde::Serialize;

use crate::exit::with_exit_code;
use crate::output;
use crate::own_heap;
use crate::process_names::describe_process;
use crate::quantities::{format_size, milliseconds};
use crate::reaper::ReaperGuard;
use crate::share_progress::ShareProgress;

/// Part of the output that describes how the result was found.
#[derive(Serialize)]
pub(crate) struct AnalysisSummary<'a> {
    pub(crate) pid: u32,
    /// Time of the last snapshot, RFC 3339.
    taken: String,
    allocators: &'a [&'static str],
    /// Resident set of the process, in bytes.
    pub(crate) rss: u64,
    stopped_ms: Vec<f64>,
    estimated_ms: f64,
    /// Longest pause that was allowed (`--max-pause`).
    max_pause_ms: f64,
    pub(crate) snapshots: usize,
    /// Live objects, leaked or not.
    pub(crate) objects: u64,
    searched_bytes: u64,
    /// Peak resident set of this program, in bytes.
    memory_bytes: u64,
    /// Memory budget of the analysis, in bytes.
    memory_limit_bytes: u64,
    unsearched: Vec<UnsearchedPart<'a>>,
    /// Texts of the unsearched parts that may hold pointers.
    unread: Vec<String>,
    warnings: &'a [String],
}

/// Part of the process that was not searched, as in the JSON.
#[derive(Serialize)]
struct UnsearchedPart<'a> {
    what: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    why: &'a str,
    #[serde(skip)]
    text: String,
}

impl<'a> UnsearchedPart<'a> {
    /// Builds the JSON form of a part. The amount of a part is either bytes or a count; if the amount is not known,
    /// both are `None`.
    fn new(part: &'a Unsearched) -> Self {
        let (bytes, count) = match part.amount {
            Some(UnsearchedAmount::Bytes(bytes)) => (Some(bytes), None),
            Some(UnsearchedAmount::Count(count)) => (None, Some(count)),
            None => (None, None),
        };
        Self {
            what: &part.what,
            bytes,
            count,
            why: &part.why,
            text: part.to_string(),
        }
    }
}

/// Calls `run`, which analyzes a process, with the options and a function that shows its phases on the terminal.
/// Meanwhile a second process (the reaper) waits to clean up the copies of the analyzed process if this program is
/// killed. Also changes malloc of this program for the rest of its run: large blocks are mapped each on its own.
pub(crate) fn analyze<T>(
    pid: u32,
    options: AnalysisOptions,
    run: impl FnOnce(AnalysisOptions, &dyn Fn(Phase)) -> Result<T, Error>,
) -> anyhow::Result<T> {
    // Such blocks are unmapped when they are freed, so they no longer count towards this program's resident set.
    own_heap::make_malloc_map_large_blocks();
    let _reaper = ReaperGuard::start(pid)?;
    let progress = PhaseProgress::default();
    finish_analysis(pid, run(options, &|phase| progress.show_phase(pid, phase)))
}

/// Clears the progress line, and returns the result of an analysis. Adds the process's name, the remedy and the exit
/// code to an error.
pub(crate) fn finish_analysis<T>(pid: u32, result: Result<T, Error>) -> anyhow::Result<T> {
    output::clear_progress();
    result.map_err(|error| analysis_error(pid, &error))
}

/// Progress of an analysis on the terminal.
#[derive(Debug, Default)]
pub(crate) struct PhaseProgress {
    /// Progress of the phase that marks objects, while it runs.
    marking: RefCell<Option<ShareProgress>>,
}

impl PhaseProgress {
    /// Shows the phase of the analysis of a process. In the phase that searches for pointers to objects, the line also
    /// has the share done, and the time left by the speed since that phase began.
    pub(crate) fn show_phase(&self, pid: u32, phase: Phase) {
        let text = phase_text(pid, phase);
        let mut marking = self.marking.borrow_mut();
        match phase {
            Phase::MarkShare { percent, .. } => marking
                .get_or_insert_with(ShareProgress::begin)
                .show(&text, percent),
            _ => {
                *marking = matches!(phase, Phase::Mark(_)).then(ShareProgress::begin);
                output::show_progress(&text);
            }
        }
    }
}

/// Returns the progress line of a phase.
fn phase_text(pid: u32, phase: Phase) -> String {
    match phase {
        Phase::Snapshot => format!("{pid}: taking a snapshot"),
        Phase::WalkHeap => format!("{pid}: walking the heap"),
        Phase::Mark(objects) | Phase::MarkShare { objects, .. } => {
            format!("{pid}: searching for pointers to {objects} objects")
        }
        Phase::Count(objects) => format!("{pid}: counting {objects} objects"),
        Phase::AwaitSecond => format!("{pid}: waiting for the second snapshot"),
        Phase::Symbolize => format!("{pid}: naming stacks"),
    }
}

/// Builds the error of an analysis, with its exit code: the process, the reason and the remedy.
fn analysis_error(pid: u32, error: &Error) -> anyhow::Error {
    let remedy = error.remedy().map(|remedy| format!("; {remedy}"));
    let remedy = remedy.unwrap_or_default();
    with_exit_code(
        error.exit_code(),
        format!("{}: {error}{remedy}", describe_process(pid)),
    )
}

impl<'a> AnalysisSummary<'a> {
    /// Builds the summary from the report of an analysis that has just ended. Reads this program's peak memory. The
    /// time is now if the report has none.
    pub(crate) fn new(pid: u32, report: &'a AnalysisReport) -> Self {
        let taken = report.taken.unwrap_or_else(SystemTime::now);
        Self {
            pid,
            taken: humantime::format_rfc3339_seconds(taken).to_string(),
            allocators: &report.allocators,
            rss: report.rss,
            stopped_ms: report.stopped.iter().copied().map(milliseconds).collect(),
            estimated_ms: milliseconds(report.estimate),
            max_pause_ms: milliseconds(report.max_pause),
            snapshots: report.stopped.len(),
            objects: report.objects,
            searched_bytes: report.searched,
            memory_bytes: peak_resident_bytes(),
            memory_limit_bytes: report.memory_limit(),
            unsearched: report.unsearched.iter().map(UnsearchedPart::new).collect(),
            unread: report
                .unsearched
                .iter()
                .filter(|part| part.role == UnsearchedRole::Pointers)
                .map(ToString::to_string)
                .collect(),
            warnings: &report.warnings,
        }
    }

    /// Returns the last lines of a command's text output, after an empty line: the summary, the unsearched parts and
    /// the warnings.
    pub(crate) fn closing_lines(&self) -> Vec<String> {
        let mut lines = vec![format!("\n{}", self.summary_sentence())];
        lines.extend(self.unsearched_lines());
        let warnings = self.warnings.iter();
        lines.extend(warnings.map(|warning| format!("note: {warning}")));
        lines
    }

    /// Returns one sentence about the objects found, the pause, the searched memory and the memory used.
    fn summary_sentence(&self) -> String {
        let stopped = self.stopped_ms.iter();
        let stopped: Vec<_> = stopped.map(|pause| format!("{pause:.1} ms")).collect();
        let pause = match stopped.is_empty() {
            true => String::new(),
            false => format!(
                " the process was stopped for {} (estimated {:.1} ms{});",
                stopped.join(", "),
                self.estimated_ms,
                self.long_pause_text()
            ),
        };
        let heap = match self.allocators {
            [] => "no heap".to_owned(),
            names => format!("the heap of {}", names.join(" and ")),
        };
        format!(
            "{} objects in {heap};{pause} {} were searched; memprof used {} of memory (limit {})",
            self.objects,
            format_size(self.searched_bytes),
            format_size(self.memory_bytes),
            format_size(self.memory_limit_bytes)
        )
    }

    /// Returns the part of the summary about a pause that was longer than `--max-pause` allows, because the machine was
    /// busy while all threads were stopped. Empty if no pause was longer, or if no limit is set (0).
    fn long_pause_text(&self) -> String {
        let is_long = |pause: &f64| *pause > self.max_pause_ms;
        match self.max_pause_ms > 0.0 && self.stopped_ms.iter().any(is_long) {
            true => format!(
                ", more than the {} ms of --max-pause: the machine is busy",
                self.max_pause_ms
            ),
            false => String::new(),
        }
    }

    /// Returns the lines about the parts that were not searched.
    fn unsearched_lines(&self) -> impl Iterator<Item = String> {
        let unsearched = self.unsearched.iter();
        unsearched.map(|part| format!("not searched: {}", part.text))
    }

    /// Builds the page of `command`. `head` are the first lines of its text output: the heading, then facts. `limits`
    /// are sentences on the limits of the analysis, `outlines` the page's tables. Panics if `head` is empty.
    pub(crate) fn build_page(
        &self,
        command: &str,
        head: &[String],
        limits: &[&str],
        outlines: Vec<Outline>,
    ) -> OutlinePage {
        let when = format!(
            "Taken at {}, with {} of resident memory. {}",
            self.taken,
            format_size(self.rss),
            self.summary_sentence()
        );
        let [heading, more @ ..] = head else {
            unreachable!("a text has a first line");
        };
        OutlinePage {
            title: format!("memprof {command} {}", describe_process(self.pid)),
            heading: heading.clone(),
            facts: more.iter().cloned().chain([when]).collect(),
            notes: self
                .unsearched_lines()
                .chain(self.warnings.iter().cloned())
                .collect(),
            limits: limits.iter().map(ToString::to_string).collect(),
            outlines,
        }
    }
}

/// Parses an amount of memory, e.g. `512MiB`, to bytes. The error is a text with a valid example.
pub(crate) fn parse_memory_amount(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("a size is {SIZE_EXAMPLE}"))
}

/// Returns the peak resident set of this program in bytes (`VmHWM` in /proc/self/status); 0 if it cannot be read.
fn peak_resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn summary_has_the_time_of_the_snapshot() {
        let mut report = AnalysisReport::default();
        report.taken = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400));
        assert_eq!(
            AnalysisSummary::new(1, &report).taken,
            "1970-01-02T00:00:00Z"
        );
    }
}
