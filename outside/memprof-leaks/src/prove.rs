//! Proves leaks: finds the objects that nothing pointed to at two moments, a second apart.

use std::time::{Duration, Instant};

use memprof_ptrace::exit_stop::ExitingProgram;
use memprof_ptrace::process::ProcStatus;
use memprof_ptrace::{ProgramWatch, Refusal};
use memprof_report::{SampleType, format_amount};

use crate::analysis::{AnalysisOptions, AnalysisReport, AnalyzedSnapshot, OnPhase, Phase};
use crate::disguised_pointers::follow_disguised_pointers;
use crate::error::Error;
use crate::fontconfig_pointers::mark_fontconfig_objects;
use crate::groups::UnsymbolizedGroups;
use crate::leak_group::LeakGroup;
use crate::mark::mark_reachable;
use crate::objects::{Object, Objects};
use crate::python_garbage::mark_python_garbage;
use crate::roots::Roots;
use crate::snapshot::{CopyTarget, Snapshot};
use crate::snapshot_memory::CachedReader;
use crate::unsearched::Unsearched;

/// Time between the two snapshots. A pointer that the program is moving during the first one is stored by the second.
const SNAPSHOT_DELAY: Duration = Duration::from_secs(1);

/// Name of threads in notes: whether they have such a stack is not known.
const SIGNAL_STACK_THREADS: &str =
    "threads that may have an alternate signal stack (sigaltstack(2))";

/// Most words of an object that its checksum covers.
const MAX_CHECKSUM_WORDS: usize = 512;
/// Multiplier whose bits have no pattern: 2^64 divided by the golden ratio, rounded to an odd number.
const CHECKSUM_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Result of a proof.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// Facts of the analysis.
    pub report: AnalysisReport,
    /// Leaked objects, grouped by stack, class and size; most bytes first.
    pub leaked: Vec<LeakGroup>,
}

/// Finds the leaked objects of a process by two snapshots, or by one if all objects are reachable in it. Blocks for the
/// time of their analysis, and a second between them.
///
/// # Errors
/// A reason why the process was not analyzed; it runs on as before.
pub fn prove_leaks(
    pid: u32,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Proof, Error> {
    let program = ProgramWatch::open(pid);
    let proof = prove_by_two_snapshots(pid, &program, options, progress);
    proof.map_err(|error| program.explain_error(error, Error::may_be_exit_or_exec))
}

/// Finds the leaked objects by up to two snapshots. Between these, waits for the end of the process, at most
/// [`SNAPSHOT_DELAY`], and fails with `Refused` if it ends. Other errors do not say yet whether the process ended or
/// executed another program meanwhile: the caller adds that.
fn prove_by_two_snapshots(
    pid: u32,
    program: &ProgramWatch,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Proof, Error> {
    let target = CopyTarget::inspect(pid)?;
    let mut report = AnalysisReport::new(&target.status, options);
    let first = report.with_snapshot(&target, options, progress, |report, analyzed| {
        mark_all_held_objects(&analyzed, report, progress)?;
        let first = UnreachableObjects::new(analyzed)?;
        report.budget.reserve(first.memory_size())?;
        Ok(first)
    })?;
    if first.checksums.is_empty() {
        // Only objects that are unreachable in both snapshots are leaked.
        let leaked = Vec::new();
        return Ok(Proof { report, leaked });
    }
    let start = Instant::now();
    progress(Phase::AwaitSecond);
    if let Some(end) = program.wait_for_end_until(start + SNAPSHOT_DELAY) {
        return Err(Refusal::from(end).into());
    }
    let leaked = report.with_snapshot(&target, options, progress, |report, analyzed| {
        mark_all_held_objects(&analyzed, report, progress)?;
        mark_signal_stacks(&target, &analyzed, report)?;
        follow_and_note_disguised_pointers(&analyzed, report)?;
        Ok(UnsymbolizedGroups::new(
            &analyzed,
            first.objects_still_unreachable(&analyzed),
        ))
    })?;
    // The stacks are symbolized after the snapshot is released, because the kernel duplicates every page that
    // the process writes until then.
    progress(Phase::Symbolize);
    let leaked = leaked.symbolize(pid, &mut report);
    Ok(Proof { report, leaked })
}

/// Finds the leaked objects of a program that is stopped in exit. One snapshot is enough, because nothing
/// changes any more.
///
/// # Errors
/// A reason why the program was not analyzed; it can still end.
pub fn prove_leaks_at_exit(
    exiting: &ExitingProgram,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Proof, Error> {
    let status = ProcStatus::read_thread(exiting.last_tid())?;
    let mut report = AnalysisReport::new(&status, options);
    let snapshot = Snapshot::for_exiting_program(exiting)?;
    progress(Phase::WalkHeap);
    let analyzed = report.analyze_snapshot(&snapshot)?;
    report.note_unproven_parts(&analyzed);
    mark_all_held_objects(&analyzed, &mut report, progress)?;
    if status.caught != 0 && has_signal_stack_candidate(&analyzed.objects) {
        report.note_unsearched_part(Unsearched::for_count(
            snapshot.threads.len() as u64,
            SIGNAL_STACK_THREADS,
            "their stacks cannot be read at the exit",
        ));
    }
    follow_and_note_disguised_pointers(&analyzed, &mut report)?;
    let leaked = UnsymbolizedGroups::new(&analyzed, analyzed.objects.unreachable());
    progress(Phase::Symbolize);
    let leaked = leaked.symbolize(exiting.last_tid(), &mut report);
    Ok(Proof { report, leaked })
}

/// Objects that were unreachable in the first snapshot, with a checksum of each: a leaked object is not
/// written any more. If it has changed, it was freed meanwhile and its memory reused, or a pointer to it was
/// somewhere that was not scanned.
struct UnreachableObjects {
    objects: Objects,
    /// Checksums, in the order of the addresses.
    checksums: Vec<u32>,
}

impl UnreachableObjects {
    /// Stores the unreachable objects of a snapshot with their checksums, and drops all else. Fails with `Memory` if
    /// the checksums exceed the budget.
    fn new(analyzed: AnalyzedSnapshot<'_>) -> Result<Self, Error> {
        let count = analyzed.objects.unreachable().count();
        analyzed
            .budget
            .require_bytes((count * size_of::<u32>()) as u64)?;
        let mut checksums = Vec::with_capacity(count);
        let mut memory = CachedReader::new(&analyzed.view);
        let leaked = analyzed.objects.unreachable();
        checksums.extend(leaked.map(|object| object_checksum(&mut memory, &object)));
        Ok(Self {
            objects: analyzed.objects.retain_unreachable(),
            checksums,
        })
    }

    /// Memory of the objects, two bits for each possible one, and of the checksums, in bytes.
    fn memory_size(&self) -> u64 {
        self.objects.bitmap_bytes(2) + (self.checksums.capacity() * size_of::<u32>()) as u64
    }

    /// Returns the objects that were unreachable in the earlier snapshot, and are unreachable, of the same size and
    /// unchanged in the later one, `analyzed`.
    fn objects_still_unreachable(
        &self,
        analyzed: &AnalyzedSnapshot<'_>,
    ) -> impl Iterator<Item = Object> {
        let mut memory = CachedReader::new(&analyzed.view);
        let mut before = self.objects.unreachable().zip(&self.checksums).peekable();
        let leaked = analyzed.objects.unreachable();
        leaked.filter(move |object| {
            // Skip the earlier objects at lower addresses.
            while before
                .next_if(|(first, _)| first.range.start < object.range.start)
                .is_some()
            {}
            let first = before.peek();
            first.is_some_and(|(first, checksum)| {
                first == object && **checksum == object_checksum(&mut memory, object)
            })
        })
    }
}

/// Checksum of an object's first [`MAX_CHECKSUM_WORDS`] words; a word that cannot be read counts as 0.
fn object_checksum(memory: &mut CachedReader<'_>, object: &Object) -> u32 {
    let addresses = object.range.clone().step_by(8).take(MAX_CHECKSUM_WORDS);
    let words = addresses.map(|address| memory.read_word(address).unwrap_or_default());
    let sum = words.fold(0_u64, |sum, word| {
        (sum.rotate_left(5) ^ word).wrapping_mul(CHECKSUM_FACTOR)
    });
    (sum >> 32) as u32
}

/// Whether an unreachable object is large enough for an alternate signal stack.
fn has_signal_stack_candidate(objects: &Objects) -> bool {
    let mut unreachable = objects.unreachable();
    unreachable.any(|object| object.size() >= libc::MINSIGSTKSZ as u64)
}

/// Marks the objects that are alternate signal stacks, and all that they reach. Does nothing if no unreachable object
/// is large enough to be one. Otherwise makes the threads of the process read the addresses, and notes in `report` the
/// threads that cannot. Fails with `Headroom` if the process writes too much meanwhile.
fn mark_signal_stacks(
    target: &CopyTarget,
    analyzed: &AnalyzedSnapshot<'_>,
    report: &mut AnalysisReport,
) -> Result<(), Error> {
    if !has_signal_stack_candidate(&analyzed.objects) {
        return Ok(());
    }
    let stacks = target.read_signal_stacks();
    if stacks.unread > 0 {
        let why = "they were at no point where they could be asked";
        report.note_unsearched_part(Unsearched::for_count(
            stacks.unread,
            SIGNAL_STACK_THREADS,
            why,
        ));
    }
    let roots = Roots {
        kernel: stacks.starts,
        ..Roots::default()
    };
    mark_reachable(
        analyzed.snapshot,
        &analyzed.view,
        &analyzed.objects,
        &roots,
        analyzed.budget.remaining(),
        &|_| {},
    )?;
    Ok(())
}

/// Marks the objects that only disguised pointers hold, and notes in the report how many there are. Fails as
/// [`follow_disguised_pointers`] does.
fn follow_and_note_disguised_pointers(
    analyzed: &AnalyzedSnapshot<'_>,
    report: &mut AnalysisReport,
) -> Result<(), Error> {
    let held = follow_disguised_pointers(analyzed)?;
    if held.objects > 0 {
        let size = format_amount(held.bytes.cast_signed(), SampleType::InuseSpace);
        report.add_warning(format!(
            "{} objects, {size}, are not reported: only disguised pointers hold them (with a tag in the upper bits, \
             shifted, byte-swapped, unaligned, mangled by glibc, as an interpreter's number, or XORed in a list), or \
             frames of suspended contexts",
            held.objects
        ));
    }
    Ok(())
}

/// Marks the objects that the roots reach, those that objects of libfontconfig hold, arrays without elements, and the
/// garbage that Python's collector will free. Records in `report` how many bytes were searched, and which pointers
/// could not be read or recognized. Fails with `Headroom` or `CopyEnded` if memory runs short meanwhile, and with
/// `Memory` if the search needs more than `--max-memory`.
fn mark_all_held_objects(
    analyzed: &AnalyzedSnapshot<'_>,
    report: &mut AnalysisReport,
    progress: OnPhase<'_>,
) -> Result<(), Error> {
    let objects = report.objects;
    progress(Phase::Mark(objects));
    let stats = mark_reachable(
        analyzed.snapshot,
        &analyzed.view,
        &analyzed.objects,
        &analyzed.roots,
        analyzed.budget.remaining(),
        &|percent| progress(Phase::MarkShare { objects, percent }),
    )?;
    report.searched = stats.bytes as u64;
    report.reads = stats.reads as u64;
    if stats.unread > 0 {
        let why = "the kernel does not let another process read it";
        report.note_unsearched_part(Unsearched::for_bytes(
            stats.unread as u64,
            "mapped memory",
            why,
        ));
    }
    analyzed
        .objects
        .mark_empty_arrays(&mut CachedReader::new(&analyzed.view));
    mark_python_garbage(analyzed)?;
    if let Some(unrecognized) = mark_fontconfig_objects(analyzed)? {
        report.note_unsearched_part(unrecognized);
    }
    Ok(())
}
