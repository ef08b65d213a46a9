//! The runtime of this process, and the way from a walked stack to a merged one.
#![expect(unsafe_code, reason = "a layout that is written once")]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::counts::{Counters, LanguageCounts, WalkOutcome};
use crate::cpython::{CPython, CPythonSymbols, UnsupportedCPython};
use crate::merge::{MAX_MANAGED, ManagedFrames, NativeStack, merge_frames};
use crate::names::name_count;
use crate::reader::{PAGES, Reader};

static CPYTHON: FoundRuntime = FoundRuntime::new();
static ENABLED: AtomicBool = AtomicBool::new(false);
static COUNTERS: Counters = Counters::new();

/// Start of the merged stack in the scratch memory, after the reader's pages and the managed frames.
const MERGED: usize = PAGES + 2 * MAX_MANAGED;

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const READY: u8 = 2;

/// A runtime that is found once, and stays.
struct FoundRuntime {
    state: AtomicU8,
    runtime: UnsafeCell<MaybeUninit<CPython>>,
}

// SAFETY: `runtime` is written by the thread that sets `WRITING`, and read only after `READY`.
unsafe impl Sync for FoundRuntime {}

impl FoundRuntime {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(EMPTY),
            runtime: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Returns the runtime. `None` before [`Self::set`] has finished.
    fn get(&self) -> Option<&CPython> {
        if self.state.load(Acquire) != READY {
            return None;
        }
        // SAFETY: nothing writes it after `READY`.
        let runtime = unsafe { &*self.runtime.get() };
        // SAFETY: it was written before `READY`.
        Some(unsafe { runtime.assume_init_ref() })
    }

    /// Stores the runtime. Has no effect if another one is stored, or is being stored by another thread.
    fn set(&self, runtime: CPython) {
        let claimed = self.state.compare_exchange(EMPTY, WRITING, AcqRel, Relaxed);
        if claimed.is_ok() {
            // SAFETY: only this thread found it empty.
            unsafe { (*self.runtime.get()).write(runtime) };
            self.state.store(READY, Release);
        }
    }
}

/// Finds the layout of a `CPython` by its symbols, so that its frames can be read from now on. If another `CPython` was
/// prepared before, the earlier one stays in use. Must not be called inside `malloc`. Returns the version as in
/// `PY_VERSION_HEX`; before Python 3.11 only its major and minor number, followed by zeros.
///
/// # Errors
/// The version is unknown, or the structures are not as expected. The frames of this `CPython` are not read then.
pub fn prepare_cpython(symbols: &CPythonSymbols) -> Result<u32, UnsupportedCPython> {
    let mut pages = [0; PAGES];
    let (version, found) = CPython::from_symbols(symbols, &mut Reader::new(&mut pages))?;
    CPYTHON.set(found);
    Ok(version)
}

/// Returns whether memprof has given up reading the frames of the interpreted language: in 64 stacks that contain the
/// interpreter's evaluation function the frames were unreadable, and in no stack a frame was readable.
pub fn is_frame_reading_given_up() -> bool {
    COUNTERS.has_only_failures()
}

/// Sets whether [`merge_interpreted_frames`] reads frames from now on. Off at first.
pub fn set_merging_enabled(is_enabled: bool) {
    ENABLED.store(is_enabled, Release);
}

/// Returns the number of stacks by the outcome of reading the interpreter's frames, since the start of the process,
/// and the number of names in the table of function names.
pub fn walk_and_name_counts() -> (LanguageCounts, u32) {
    (COUNTERS.totals(), name_count())
}

/// Merges the interpreted program's frames into `native`, a stack of the calling thread, and counts the outcome.
/// `scratch` is memory of at least [`SCRATCH_WORDS`](crate::SCRATCH_WORDS) words. Returns the range of `scratch` with
/// the merged stack, leaf first. `None` if the thread has no frames of the interpreter, if they are unreadable, or if
/// `scratch` is too small. Also `None` while merging is off ([`set_merging_enabled`]), before [`prepare_cpython`], and
/// after memprof has given up ([`is_frame_reading_given_up`]).
#[cold]
#[inline(never)]
pub fn merge_interpreted_frames(
    native: NativeStack<'_>,
    scratch: &mut [usize],
) -> Option<Range<usize>> {
    if !ENABLED.load(Relaxed) {
        return None;
    }
    let runtime = CPYTHON.get()?;
    if COUNTERS.has_only_failures() {
        return None;
    }
    let (pages, rest) = scratch.split_first_chunk_mut::<PAGES>()?;
    let (words, merged) = rest.split_at_mut_checked(2 * MAX_MANAGED)?;
    let mut managed = ManagedFrames::new(words);
    let mut reader = Reader::new(pages);
    let interpreter = runtime.interpreter_range();
    let outcome = match runtime.read_frames(&mut reader, &mut managed) {
        // The interpreter's function is on the stack, so there are frames that were not read.
        Some(WalkOutcome::Absent) | None if native.frame_in_code(0, &interpreter).is_some() => {
            WalkOutcome::Unread
        }
        None => WalkOutcome::Absent,
        Some(outcome) => outcome,
    };
    COUNTERS.count_walk(outcome);
    if managed.len() == 0 {
        return None;
    }
    let count = merge_frames(native, &managed, &interpreter, merged);
    Some(MERGED..MERGED + count)
}
