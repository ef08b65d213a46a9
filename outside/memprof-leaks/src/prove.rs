//! What is leaked, with proof: nothing pointed to it at two moments, a second apart.

use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::exit_stop::ExitingProgram;
use memprof_ptrace::process::ProcStatus;

use crate::analysis::{AnalysisOptions, AnalysisReport, AnalyzedSnapshot, OnPhase, Phase};
use crate::error::Error;
use crate::groups::{LeakGroup, UnsymbolizedGroups};
use crate::mark::mark_reachable;
use crate::objects::{Object, Objects};
use crate::python_garbage::mark_python_garbage;
use crate::snapshot::{CopyTarget, Snapshot};
use crate::snapshot_memory::CachedReader;

/// Between two snapshots: what is on its way from one place to another has arrived then.
const APART: Duration = Duration::from_secs(1);

/// Words of an object that are compared.
const SUMMED: usize = 512;
/// Odd, and without a pattern: the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// How it was found.
    pub report: AnalysisReport,
    /// What is leaked, by stack, class and size, the most bytes first.
    pub leaked: Vec<LeakGroup>,
}

/// Looks at a process twice. `progress` is told what is being done.
///
/// # Errors
/// Why not; the process goes on as before.
pub fn prove(pid: u32, options: AnalysisOptions, progress: OnPhase<'_>) -> Result<Proof, Error> {
    let subject = CopyTarget::inspect(pid)?;
    let mut report = AnalysisReport::new(&subject.status, options);
    let first = report.with_snapshot(&subject, options, progress, |report, seen| {
        mark_all(&seen, report, progress)?;
        let first = UnreachableObjects::of(seen)?;
        report.budget.reserve(first.memory())?;
        Ok(first)
    })?;
    let begun = Instant::now();
    progress(Phase::AwaitSecond);
    thread::sleep(APART.saturating_sub(begun.elapsed()));
    let leaked = report.with_snapshot(&subject, options, progress, |report, seen| {
        mark_all(&seen, report, progress)?;
        Ok(UnsymbolizedGroups::new(
            &seen,
            first.still_unreachable(&seen),
        ))
    })?;
    // By then the copy is gone, of which every page counts that the process writes to.
    progress(Phase::Symbolize);
    let leaked = leaked.symbolize(pid, &mut report);
    Ok(Proof { report, leaked })
}

/// Looks once at a program that is about to end: nothing moves any more.
///
/// # Errors
/// Why not; it can still end.
pub fn prove_at_exit(
    ending: &ExitingProgram,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Proof, Error> {
    let status = ProcStatus::read_thread(ending.pid())?;
    let mut report = AnalysisReport::new(&status, options);
    let snapshot = Snapshot::at_exit(ending)?;
    progress(Phase::WalkHeap);
    let seen = report.analyze(&snapshot)?;
    report.warn_unproven(&seen);
    mark_all(&seen, &mut report, progress)?;
    let leaked = UnsymbolizedGroups::new(&seen, seen.objects.unreachable());
    progress(Phase::Symbolize);
    let leaked = leaked.symbolize(ending.pid(), &mut report);
    Ok(Proof { report, leaked })
}

/// What was not reached in a first snapshot, with a sum of what lay in each object: what nothing points to is written
/// to by nobody. Where something else lies there later, it was freed meanwhile and the place given out again, or
/// somebody has a pointer where nobody report.
struct UnreachableObjects {
    objects: Objects,
    /// In the order of the addresses.
    sums: Vec<u32>,
}

impl UnreachableObjects {
    fn of(seen: AnalyzedSnapshot<'_>) -> Result<Self, Error> {
        let count = seen.objects.unreachable().count();
        seen.budget.require((count * size_of::<u32>()) as u64)?;
        let mut sums = Vec::with_capacity(count);
        let mut memory = CachedReader::new(&seen.view);
        let leaked = seen.objects.unreachable();
        sums.extend(leaked.map(|object| sum(&mut memory, &object)));
        Ok(Self {
            objects: seen.objects.retain_unreachable(),
            sums,
        })
    }

    /// In bytes.
    fn memory(&self) -> u64 {
        self.objects.memory_of(2) + (self.sums.capacity() * size_of::<u32>()) as u64
    }

    /// Those that are there again in a later snapshot, and were not reached in that either.
    fn still_unreachable(&self, seen: &AnalyzedSnapshot<'_>) -> impl Iterator<Item = Object> {
        let mut memory = CachedReader::new(&seen.view);
        let mut before = self.objects.unreachable().zip(&self.sums).peekable();
        let leaked = seen.objects.unreachable();
        leaked.filter(move |object| {
            while before
                .next_if(|(first, _)| first.range.start < object.range.start)
                .is_some()
            {}
            let first = before.peek();
            first.is_some_and(|(first, sum)| {
                first == object && **sum == self::sum(&mut memory, object)
            })
        })
    }
}

/// A sum of an object's first bytes.
fn sum(memory: &mut CachedReader<'_>, object: &Object) -> u32 {
    let places = object.range.clone().step_by(8).take(SUMMED);
    let words = places.map(|place| memory.word(place).unwrap_or_default());
    let sum = words.fold(0_u64, |sum, word| {
        (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR)
    });
    (sum >> 32) as u32
}

/// Marks what is reached, and what Python's collector will free.
fn mark_all(
    seen: &AnalyzedSnapshot<'_>,
    report: &mut AnalysisReport,
    progress: OnPhase<'_>,
) -> Result<(), Error> {
    progress(Phase::Mark(report.objects));
    let searched = mark_reachable(seen.snapshot, &seen.view, &seen.objects, &seen.roots)?;
    report.searched = searched.bytes as u64;
    mark_python_garbage(seen)
}
