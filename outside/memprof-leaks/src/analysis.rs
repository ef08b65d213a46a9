//! One look at a process: a snapshot, its heap and its roots.

use std::ops::Range;
use std::time::Duration;

use memprof_ptrace::Refusal;
use memprof_ptrace::process::ProcStatus;

use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::heap;
use crate::names::Python;
use crate::objects::Objects;
use crate::roots::{Roots, find_roots};
use crate::snapshot::{CopyTarget, Snapshot};
use crate::snapshot_memory::SnapshotMemory;
use crate::stacks::SamplerTables;

/// How often a snapshot is taken again whose heap was in the midst of a change.
const TRIES: usize = 3;

/// How to look.
#[derive(Clone, Copy, Debug)]
pub struct AnalysisOptions {
    /// How long the process may stand still, for each snapshot.
    pub max_pause: Duration,
    /// What this may take of memory, in bytes; else 12 % of what the process has, and at least 128 MiB.
    pub max_memory: Option<u64>,
}

impl Default for AnalysisOptions {
    fn default() -> Self {
        Self {
            max_pause: Duration::from_millis(100),
            max_memory: None,
        }
    }
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The process is copied.
    Snapshot,
    /// The heap of the copy is walked.
    WalkHeap,
    /// So many objects live; they are searched for.
    Mark(u64),
    /// The next snapshot is awaited.
    AwaitSecond,
    /// The stacks of what is leaked get their names.
    Symbolize,
}

/// Who is told what is being done.
pub type OnPhase<'a> = &'a dyn Fn(Phase);

/// What is said of a process besides the result.
#[derive(Clone, Debug, Default)]
pub struct AnalysisReport {
    /// The allocators whose heaps were walked.
    pub allocators: Vec<&'static str>,
    /// Resident memory of the process, in bytes.
    pub rss: u64,
    /// How long it stood still, for each snapshot.
    pub stopped: Vec<Duration>,
    /// How long that had been estimated.
    pub estimate: Duration,
    /// Objects that live, leaked or not.
    pub objects: u64,
    /// Bytes that were searched for pointers.
    pub searched: u64,
    /// What might hold pointers and could not be searched.
    pub unread: Vec<String>,
    /// What limits the result.
    pub warnings: Vec<String>,
    pub(crate) budget: MemoryBudget,
}

/// What is seen of a process at one moment.
pub(crate) struct AnalyzedSnapshot<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) view: SnapshotMemory,
    pub(crate) objects: Objects,
    /// Objects of the allocator's own, whose words hold nothing.
    pub(crate) silent: Vec<u64>,
    /// Objects and their contexts, of the heap's layout.
    pub(crate) contexts: Vec<(u64, u64)>,
    pub(crate) sampled: SamplerTables,
    /// Parts of the heap that did not prove themselves.
    pub(crate) unproven: Vec<String>,
    pub(crate) roots: Roots,
    /// With all of this taken.
    pub(crate) budget: MemoryBudget,
}

impl AnalysisReport {
    pub(crate) fn new(status: &ProcStatus, options: AnalysisOptions) -> Self {
        Self {
            rss: status.resident,
            budget: MemoryBudget::new(status.resident, options.max_memory),
            ..Self::default()
        }
    }

    /// What this may take of memory, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.budget.limit()
    }

    /// Takes a snapshot, has `work` done with what is seen, and lets the snapshot go.
    pub(crate) fn with_snapshot<T>(
        &mut self,
        subject: &CopyTarget,
        options: AnalysisOptions,
        progress: OnPhase<'_>,
        mut work: impl FnMut(&mut Self, AnalyzedSnapshot<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for attempt in 1.. {
            progress(Phase::Snapshot);
            // The rest is for what is known of the objects.
            let room = self.budget.left() / 2;
            let snapshot = subject.snapshot(options.max_pause, room)?;
            self.stopped.push(snapshot.stopped);
            self.estimate = snapshot.estimate;
            progress(Phase::WalkHeap);
            let mut memories = Vec::new();
            let done = self.analyze(&snapshot).and_then(|seen| {
                memories.extend(seen.view.memories());
                // Another moment may mend it.
                match seen.unproven.is_empty() || attempt == TRIES {
                    true => {
                        self.warn_unproven(&seen);
                        work(self, seen).map(Some)
                    }
                    false => Ok(None),
                }
            });
            // What was read besides is no answer.
            let done = match memories
                .iter()
                .all(|memory| memory.require_answers().is_ok())
            {
                true => done,
                false => Err(Refusal::SilentMemory { pid: snapshot.pid }.into()),
            };
            let is_reaped = snapshot.release(subject);
            if !is_reaped {
                let message = "a zombie child stays until the process ends, which could not be made to call wait4(2)";
                self.warn(message.to_owned());
            }
            if let Some(done) = done? {
                return Ok(done);
            }
        }
        unreachable!("the last attempt returns");
    }

    /// Adds a warning, once.
    pub(crate) fn warn(&mut self, message: String) {
        warn(&mut self.warnings, message);
    }

    /// Warns of what is not told of a snapshot.
    pub(crate) fn warn_unproven(&mut self, seen: &AnalyzedSnapshot<'_>) {
        for part in &seen.unproven {
            let message = "memory of unknown form, in which no leak is reported";
            self.warn(format!("{message}: {part}"));
        }
    }

    /// What there is in a snapshot.
    pub(crate) fn analyze<'a>(
        &mut self,
        snapshot: &'a Snapshot,
    ) -> Result<AnalyzedSnapshot<'a>, Error> {
        let view = SnapshotMemory::of(snapshot)?;
        let mut budget = self.budget;
        budget.take(snapshot.lacking.memory())?;
        let (allocators, heap) = heap::find_heaps(&view, &snapshot.threads, &mut budget)?;
        let sampled = SamplerTables::find(&view);
        let own = merge_ranges(heap.own.into_iter().chain(sampled.table_ranges()).collect());
        let mut objects = Objects::new(heap.spans);
        objects.exclude_cached(&heap.cached);
        objects.mark_without_scan(&heap.silent);
        if let Some(mut python) = Python::find(&view) {
            budget.take(objects.memory_of(2))?;
            python.record_gc_heads(&objects);
        }
        let roots = find_roots(snapshot, &view, &own);
        self.allocators = allocators;
        self.objects = objects.count();
        for part in heap.unknown {
            self.warn(part);
        }
        for part in &roots.unread {
            warn(&mut self.unread, part.clone());
        }
        Ok(AnalyzedSnapshot {
            snapshot,
            view,
            objects,
            silent: heap.silent,
            contexts: heap.contexts,
            sampled,
            unproven: heap.unproven,
            roots,
            budget,
        })
    }
}

/// The same memory as ranges that do not overlap, by address.
fn merge_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

fn warn(warnings: &mut Vec<String>, message: String) {
    if !warnings.contains(&message) {
        warnings.push(message);
    }
}
