//! Analysis of a process at one moment: a snapshot with its heap and its roots.

use std::mem;
use std::time::{Duration, SystemTime};

use memprof_ptrace::Refusal;
use memprof_ptrace::process::ProcStatus;

use crate::address_ranges::merge_ranges;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::heap;
use crate::objects::Objects;
use crate::python::{Interpreters, PythonTypes};
use crate::roots::{Roots, find_roots};
use crate::snapshot::{CopyTarget, Snapshot};
use crate::snapshot_memory::SnapshotMemory;
use crate::stacks::SamplerTables;
use crate::unsearched::{Unsearched, UnsearchedRole};

/// Most snapshots that are taken until the heap of one is consistent.
const MAX_ATTEMPTS: usize = 3;

/// Limits for the analysis of a process.
#[derive(Clone, Copy, Debug)]
pub struct AnalysisOptions {
    /// Longest time for which all threads may be stopped, per snapshot.
    pub max_pause: Duration,
    /// Most memory that memprof may use for the analysis, in bytes. By default 12 % of the process's resident
    /// memory, and at least 128 MiB.
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

/// Phase of an analysis, for progress reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The process is stopped and copied.
    Snapshot,
    /// The heap of the copy is walked.
    WalkHeap,
    /// Reachable objects are marked, among this number of objects.
    Mark(u64),
    /// Like [`Mark`](Self::Mark), with the share of the work that is done. Follows it several times a second.
    MarkShare {
        /// Number of objects.
        objects: u64,
        /// Percent of the work.
        percent: u8,
    },
    /// This number of objects is counted by type.
    Count(u64),
    /// The second snapshot is due in a while.
    AwaitSecond,
    /// The stacks of the leaked objects are symbolized.
    Symbolize,
}

/// Callback that is called at the start of each phase, and within long ones.
pub type OnPhase<'a> = &'a dyn Fn(Phase);

/// Facts about an analysis: its pauses, memory, and warnings.
#[derive(Clone, Debug, Default)]
pub struct AnalysisReport {
    /// Allocators whose heaps were walked.
    pub allocators: Vec<&'static str>,
    /// Resident memory of the process, in bytes.
    pub rss: u64,
    /// Time of the last snapshot. `None` if none was taken.
    pub taken: Option<SystemTime>,
    /// Time for which all threads were stopped, one per snapshot.
    pub stopped: Vec<Duration>,
    /// Estimated pause of the last snapshot.
    pub estimate: Duration,
    /// Longest time that was allowed; a busy machine may exceed it.
    pub max_pause: Duration,
    /// Objects of the heap, leaked or not.
    pub objects: u64,
    /// Bytes that were scanned for pointers.
    pub searched: u64,
    /// Reads of the last snapshot's memory in the search for leaks: a measure of the cost that is equal on all
    /// machines.
    pub reads: u64,
    /// Memory, heaps and kernel objects that were not searched.
    pub unsearched: Vec<Unsearched>,
    /// Reasons why the result may be incomplete.
    pub warnings: Vec<String>,
    pub(crate) budget: MemoryBudget,
}

/// Snapshot of a process with its heap and roots.
pub(crate) struct AnalyzedSnapshot<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) view: SnapshotMemory,
    pub(crate) objects: Objects,
    /// Addresses of objects that the allocator uses itself. They are not scanned for pointers.
    pub(crate) opaque: Vec<u64>,
    /// Addresses of objects, each with the profiler's context that the heap stores for it.
    pub(crate) contexts: Vec<(u64, u64)>,
    /// Tables of memprof's sampler in the process.
    pub(crate) sampled: SamplerTables,
    /// Parts of the heap that are inconsistent.
    pub(crate) unproven: Vec<String>,
    pub(crate) roots: Roots,
    /// Interpreters of Python, if their layout is known.
    pub(crate) python: Option<Interpreters>,
    /// Budget of which all of this is reserved.
    pub(crate) budget: MemoryBudget,
}

impl AnalysisReport {
    /// Report of an analysis that has not begun. Its memory budget is `--max-memory`, or else a share of the resident
    /// memory in `status`.
    pub(crate) fn new(status: &ProcStatus, options: AnalysisOptions) -> Self {
        Self {
            rss: status.resident,
            max_pause: options.max_pause,
            budget: MemoryBudget::new(status.resident, options.max_memory),
            ..Self::default()
        }
    }

    /// Most memory that the analysis may use, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.budget.limit()
    }

    /// Takes a snapshot of the process (a copy that never runs), analyzes it, calls `work` with the analysis, and
    /// releases the snapshot. Returns the result of `work`. If the heap is inconsistent, takes a new snapshot instead;
    /// the last of [`MAX_ATTEMPTS`] is given to `work` in any case, and the report then lists the inconsistent parts.
    /// Warns of a copy that stays as a zombie. Fails with `SilentMemory` if a page of the memory does not arrive in
    /// time, with `CopyEnded` if the copy was killed, and with the error of a step that fails.
    pub(crate) fn with_snapshot<T>(
        &mut self,
        target: &CopyTarget,
        options: AnalysisOptions,
        progress: OnPhase<'_>,
        mut work: impl FnMut(&mut Self, AnalyzedSnapshot<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for attempt in 1.. {
            progress(Phase::Snapshot);
            // The snapshot gets half of the budget; the other half is for data about the objects.
            let max_bytes = self.budget.remaining() / 2;
            let snapshot = target.take_snapshot(options.max_pause, max_bytes)?;
            self.stopped.push(snapshot.stopped);
            self.estimate = self.estimate.max(snapshot.estimate);
            progress(Phase::WalkHeap);
            let mut memories = Vec::new();
            let done = self.analyze_snapshot(&snapshot).and_then(|analyzed| {
                memories.extend(analyzed.view.memories());
                // An inconsistent heap needs a new snapshot, except in the last attempt.
                match analyzed.unproven.is_empty() || attempt == MAX_ATTEMPTS {
                    true => {
                        self.note_unproven_parts(&analyzed);
                        work(self, analyzed).map(Some)
                    }
                    false => Ok(None),
                }
            });
            // An analysis is void if some of the memory could not be read.
            let is_responsive = memories
                .iter()
                .all(|memory| memory.require_responsive_memory().is_ok());
            let done = match is_responsive {
                true if snapshot.has_copy_ended() => Err(Error::CopyEnded),
                true => done,
                false => Err(Refusal::SilentMemory { pid: snapshot.pid }.into()),
            };
            let is_reaped = snapshot.release(target);
            if !is_reaped {
                let message = "a zombie child stays until the process ends, which could not be made to call wait4(2)";
                self.add_warning(message.to_owned());
            }
            if let Some(done) = done? {
                return Ok(done);
            }
        }
        unreachable!("the last attempt returns");
    }

    /// Adds a warning, unless the report has it already.
    pub(crate) fn add_warning(&mut self, message: String) {
        push_warning(&mut self.warnings, message);
    }

    /// Adds each inconsistent part of the heap to the unsearched parts of the report, as memory in which no leak is
    /// reported.
    pub(crate) fn note_unproven_parts(&mut self, analyzed: &AnalyzedSnapshot<'_>) {
        for part in &analyzed.unproven {
            let why = "memory of unknown form, in which no leak is reported";
            self.note_unsearched_part(Unsearched::for_objects(None, part.clone(), why));
        }
    }

    /// Records a part that was not searched. Each part is listed once: a later record of the same part, which has the
    /// amount in a later snapshot, replaces the earlier one.
    pub(crate) fn note_unsearched_part(&mut self, part: Unsearched) {
        let mut known = self.unsearched.iter_mut();
        match known.find(|known| known.is_same_part(&part)) {
            Some(known) => *known = part,
            None => self.unsearched.push(part),
        }
    }

    /// Whether the report lists an unsearched part with this role.
    pub fn has_unsearched_part(&self, role: UnsearchedRole) -> bool {
        self.unsearched.iter().any(|part| part.role == role)
    }

    /// Finds the interpreters of Python. `None` if none runs. Also `None` if one cannot be read, with a warning in the
    /// report.
    fn find_interpreters(&mut self, view: &SnapshotMemory) -> Option<Interpreters> {
        Interpreters::find(view).unwrap_or_else(|reason| {
            self.add_warning(format!(
                "Python's objects up to 512 bytes and its variables are not known: {reason}"
            ));
            None
        })
    }

    /// Walks the heap of a snapshot, which was just taken, and finds the roots: the memory and words from which the
    /// search for reachable objects starts. Records the time, the allocators, the number of objects, warnings and parts
    /// that are not searched in this report. Fails with `NoHeap` if the process has no heap that memprof can read, with
    /// `Memory` if the search needs more than `--max-memory`, and if the snapshot cannot be read.
    pub(crate) fn analyze_snapshot<'a>(
        &mut self,
        snapshot: &'a Snapshot,
    ) -> Result<AnalyzedSnapshot<'a>, Error> {
        self.taken = Some(SystemTime::now());
        let view = SnapshotMemory::open(snapshot)?;
        // A copy, because the reservations end with this snapshot.
        let mut budget = self.budget;
        budget.reserve(snapshot.uncopied.memory_size() + snapshot.shared.memory_size())?;
        let mut python = self.find_interpreters(&view);
        let pool_size = python.as_ref().map(Interpreters::pool_size);
        let (allocators, mut heap) =
            heap::find_heaps(&view, &snapshot.threads, pool_size, &mut budget)?;
        if let Some(python) = &mut python {
            python.pools = mem::take(&mut heap.pools);
        }
        let sampled = SamplerTables::find(&view);
        let own = merge_ranges(
            heap.excluded
                .into_iter()
                .chain(sampled.table_ranges())
                .collect(),
        );
        let mut objects = Objects::new(heap.spans);
        objects.exclude_cached_objects(&heap.cached);
        objects.mark_without_scan(&heap.opaque);
        let types = python.as_ref().map(|python| python.new_type_reader(&view));
        if let Some(mut types) = types.or_else(|| PythonTypes::without_layout(&view)) {
            types.record_gc_heads(&objects, &mut budget)?;
            if let Some(warning) = types.type_warning() {
                self.add_warning(warning);
            }
        }
        let mut roots = find_roots(snapshot, &view, &own);
        self.allocators = allocators;
        self.objects = objects.count();
        for warning in heap.warnings {
            self.add_warning(warning);
        }
        for part in heap
            .unreadable
            .into_iter()
            .chain(roots.unsearched.drain(..))
        {
            self.note_unsearched_part(part);
        }
        Ok(AnalyzedSnapshot {
            snapshot,
            view,
            objects,
            opaque: heap.opaque,
            contexts: heap.contexts,
            sampled,
            unproven: heap.unproven,
            roots,
            python,
            budget,
        })
    }
}

/// Adds a warning unless it is in the list.
fn push_warning(warnings: &mut Vec<String>, message: String) {
    if !warnings.contains(&message) {
        warnings.push(message);
    }
}
