//! Counts of the walks of one runtime.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Walks without a readable frame, though the interpreter's function was on the stack, after which a runtime of which
/// none was ever read is given up.
const MAX_FAILURES: u64 = 64;

/// Walks of one runtime since it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LanguageCounts {
    /// Stacks in which the runtime's frames were looked for.
    pub samples: u64,
    /// Those of `samples` with at least one frame of the program.
    pub with_frames: u64,
    /// Those of `with_frames` whose frames end in one that could not be read.
    pub ended_early: u64,
    /// Those of `samples` without a frame of the program, though the interpreter was running on that thread.
    pub unread: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    samples: AtomicU64,
    with_frames: AtomicU64,
    ended_early: AtomicU64,
    unread: AtomicU64,
}

/// Result of one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkOutcome {
    /// No interpreter runs on the thread.
    Absent,
    /// The interpreter's function is on the stack, but no frame could be read.
    Unread,
    /// All frames were read.
    Whole,
    /// Frames were read up to one that could not be.
    EndedEarly,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            samples: AtomicU64::new(0),
            with_frames: AtomicU64::new(0),
            ended_early: AtomicU64::new(0),
            unread: AtomicU64::new(0),
        }
    }

    /// Counts one walk by its outcome. Every walk counts as a sample. A walk that ended early also counts as one with
    /// frames. A walk of a thread on which no interpreter runs counts as a sample only.
    pub(crate) fn count_walk(&self, outcome: WalkOutcome) {
        self.samples.fetch_add(1, Relaxed);
        let more = match outcome {
            WalkOutcome::Absent => return,
            WalkOutcome::Unread => &self.unread,
            WalkOutcome::Whole => &self.with_frames,
            WalkOutcome::EndedEarly => {
                self.ended_early.fetch_add(1, Relaxed);
                &self.with_frames
            }
        };
        more.fetch_add(1, Relaxed);
    }

    /// Returns whether [`MAX_FAILURES`] walks could not read the frames of the language, and no walk read one. The
    /// runtime's layout is not as expected then, so the caller stops reading frames.
    pub(crate) fn has_only_failures(&self) -> bool {
        self.with_frames.load(Relaxed) == 0 && self.unread.load(Relaxed) >= MAX_FAILURES
    }

    /// Returns the counts since the start of the process. They may be of different moments while other threads walk.
    pub(crate) fn totals(&self) -> LanguageCounts {
        LanguageCounts {
            samples: self.samples.load(Relaxed),
            with_frames: self.with_frames.load(Relaxed),
            ended_early: self.ended_early.load(Relaxed),
            unread: self.unread.load(Relaxed),
        }
    }
}
