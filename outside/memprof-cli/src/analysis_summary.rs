//! What `memprof leaks --prove` and `memprof holders` say of how they looked at a process.

use std::fs;
use std::time::{Duration, SystemTime};

use memprof_leaks::{AnalysisOptions, AnalysisReport, Error, Phase};
use memprof_messages::{SIZE_EXAMPLE, parse_size};
use memprof_report::{Outline, OutlinePage, SampleType, amount};
use serde::Serialize;

use crate::exit::with_exit_code;
use crate::output;
use crate::own_heap;
use crate::reaper::ReaperGuard;

/// The part of a reply that says how it was found.
#[derive(Serialize)]
pub(crate) struct AnalysisSummary<'a> {
    pub(crate) pid: u32,
    /// The time of the last look, RFC 3339.
    taken: String,
    allocators: &'a [&'static str],
    /// In bytes.
    rss: u64,
    stopped_ms: Vec<f64>,
    estimated_ms: f64,
    pub(crate) snapshots: usize,
    /// Objects that live, leaked or not.
    pub(crate) objects: u64,
    searched_bytes: u64,
    /// The most that this program had of memory, in bytes.
    memory_bytes: u64,
    /// What it may take for looking at the process, in bytes.
    memory_limit_bytes: u64,
    unread: &'a [String],
    warnings: &'a [String],
}

/// Looks at a process, and shows on a terminal what is being done.
pub(crate) fn analyze<T>(
    pid: u32,
    options: AnalysisOptions,
    look: impl FnOnce(AnalysisOptions, &dyn Fn(Phase)) -> Result<T, Error>,
) -> anyhow::Result<T> {
    // What is given back then counts no more.
    own_heap::map_large_blocks();
    let _reaper = ReaperGuard::start(pid)?;
    finish_analysis(pid, look(options, &|step| progress(pid, step)))
}

/// What was found, or why not.
pub(crate) fn finish_analysis<T>(pid: u32, found: Result<T, Error>) -> anyhow::Result<T> {
    output::clear();
    found.map_err(|error| refused(pid, &error))
}

/// Shows on a terminal what is being done.
pub(crate) fn progress(pid: u32, step: Phase) {
    output::progress(&phase_text(pid, step));
}

fn phase_text(pid: u32, step: Phase) -> String {
    match step {
        Phase::Snapshot => format!("{pid}: taking a snapshot"),
        Phase::WalkHeap => format!("{pid}: walking the heap"),
        Phase::Mark(objects) => format!("{pid}: searching for pointers to {objects} objects"),
        Phase::AwaitSecond => format!("{pid}: waiting for the second snapshot"),
        Phase::Symbolize => format!("{pid}: naming stacks"),
    }
}

pub(crate) fn name_of(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{pid} ({})", name.trim_end()),
        Err(_) => pid.to_string(),
    }
}

fn refused(pid: u32, error: &Error) -> anyhow::Error {
    let remedy = error.remedy().map(|remedy| format!("; {remedy}"));
    let remedy = remedy.unwrap_or_default();
    with_exit_code(
        error.exit_code(),
        format!("{}: {error}{remedy}", name_of(pid)),
    )
}

impl<'a> AnalysisSummary<'a> {
    pub(crate) fn new(pid: u32, looks: &'a AnalysisReport) -> Self {
        let milliseconds = |pause: &Duration| pause.as_micros() as f64 / 1000.0;
        Self {
            pid,
            taken: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            allocators: &looks.allocators,
            rss: looks.rss,
            stopped_ms: looks.stopped.iter().map(milliseconds).collect(),
            estimated_ms: milliseconds(&looks.estimate),
            snapshots: looks.stopped.len(),
            objects: looks.objects,
            searched_bytes: looks.searched,
            memory_bytes: most_resident(),
            memory_limit_bytes: looks.memory_limit(),
            unread: &looks.unread,
            warnings: &looks.warnings,
        }
    }

    /// The last lines of a text.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("\n{}", self.summary())];
        lines.extend(self.unread());
        let warnings = self.warnings.iter();
        lines.extend(warnings.map(|warning| format!("note: {warning}")));
        lines
    }

    fn summary(&self) -> String {
        let stopped = self.stopped_ms.iter();
        let stopped: Vec<_> = stopped.map(|pause| format!("{pause:.1} ms")).collect();
        let stood_still = match stopped.is_empty() {
            true => String::new(),
            false => format!(
                " the process was stopped for {} (estimated {:.1} ms);",
                stopped.join(", "),
                self.estimated_ms
            ),
        };
        format!(
            "{} objects in the heap of {};{stood_still} {} were searched; memprof used {} of memory (limit {})",
            self.objects,
            self.allocators.join(" and "),
            size(self.searched_bytes),
            size(self.memory_bytes),
            size(self.memory_limit_bytes)
        )
    }

    fn unread(&self) -> impl Iterator<Item = String> {
        let unread = self.unread.iter();
        unread.map(|part| format!("not searched: {part}"))
    }

    /// The page that says the same as a text, whose first lines these are.
    pub(crate) fn page(
        &self,
        command: &str,
        head: &[String],
        limits: &[&str],
        outlines: Vec<Outline>,
    ) -> OutlinePage {
        let when = format!(
            "Taken at {}, with {} of resident memory. {}",
            self.taken,
            size(self.rss),
            self.summary()
        );
        let [heading, more @ ..] = head else {
            unreachable!("a text has a first line");
        };
        OutlinePage {
            title: format!("memprof {command} {}", name_of(self.pid)),
            heading: heading.clone(),
            facts: more.iter().cloned().chain([when]).collect(),
            notes: self.unread().chain(self.warnings.iter().cloned()).collect(),
            limits: limits.iter().map(ToString::to_string).collect(),
            outlines,
        }
    }
}

/// An amount of memory as an argument: `512MiB`.
pub(crate) fn parse_amount(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("a size is {SIZE_EXAMPLE}"))
}

pub(crate) fn size(bytes: u64) -> String {
    amount(bytes.cast_signed(), SampleType::InuseSpace)
}

/// The most memory that this program had at a time, in bytes.
fn most_resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}
