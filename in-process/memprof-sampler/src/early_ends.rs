//! Counts of the samples whose stacks end before the outermost frame, by reason and by the object in which they end.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use memprof_unwind::{WalkEnd, object_start};

use crate::stack_table::MAX_FRAMES;

/// Number of pairs of reason and object that are counted separately. Samples of further pairs count as in no object.
const CELL_COUNT: usize = 128;

/// Bits of a key that hold the reason. Objects start at page boundaries, so these bits of their addresses are 0.
const REASON_MASK: usize = 0xfff;

/// Reason why a stack ends before its outermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyEndReason {
    /// More frames than a stack record holds.
    TooManyFrames,
    /// The next word of the stack is in unreadable memory.
    UnreadableStack,
    /// The call frame information cannot be read, or needs a register that is unknown.
    UnreadableFrameInformation,
    /// The code is in no file and keeps no frame pointer, for example code from a just-in-time compiler.
    UnknownCode,
    /// The code has no call frame information, and keeps no frame pointer.
    NoFrameInformation,
}

impl EarlyEndReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::TooManyFrames,
        Self::UnreadableStack,
        Self::UnreadableFrameInformation,
        Self::UnknownCode,
        Self::NoFrameInformation,
    ];

    /// Converts the end of a stack walk to the reason why the recorded stack ends early. `None` if the walk reached the
    /// outermost frame and all its frames are recorded. `is_cut`: the record has no room for all frames; this reason
    /// takes precedence over the walk's end.
    fn from_walk_end(end: WalkEnd, is_cut: bool) -> Option<Self> {
        match end {
            _ if is_cut => Some(Self::TooManyFrames),
            WalkEnd::Outermost => None,
            WalkEnd::Full => Some(Self::TooManyFrames),
            WalkEnd::Unreadable => Some(Self::UnreadableStack),
            WalkEnd::Unsupported => Some(Self::UnreadableFrameInformation),
            WalkEnd::UnknownCode => Some(Self::UnknownCode),
            WalkEnd::Undescribed => Some(Self::NoFrameInformation),
        }
    }
}

/// Samples whose stacks end early for one reason in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyEnds {
    /// Reason why the stacks end there.
    pub reason: EarlyEndReason,
    /// Start address of the object. `None` if the code is in no object, or if the reason is
    /// [`EarlyEndReason::TooManyFrames`].
    pub object: Option<usize>,
    /// Number of samples, including those freed since.
    pub samples: u64,
}

/// Samples of one reason and object.
struct Cell {
    /// Start of the object, plus the index of the reason, plus 1; 0 if the cell is free.
    key: AtomicUsize,
    samples: AtomicU64,
}

/// Counts by reason and object. Lock-free: hooks add to it.
struct EarlyEndTable([Cell; CELL_COUNT]);

static TABLE: EarlyEndTable = EarlyEndTable::new();

/// Counts a sample if its stack walk ended before the outermost frame, or if its record lacks frames (`is_cut`). `last`
/// is the last code address of the walk.
#[inline(always)]
pub(crate) fn count_if_early(end: WalkEnd, is_cut: bool, last: usize) {
    if end != WalkEnd::Outermost || is_cut {
        count_early_end(end, is_cut, last);
    }
}

/// Slow path of [`count_if_early`], with the same parameters. Finds the loaded object that contains the last frame, and
/// counts the sample for this object and the reason of the end. A stack with too many frames counts as in no object.
#[cold]
#[inline(never)]
fn count_early_end(end: WalkEnd, is_cut: bool, last: usize) {
    if let Some(reason) = EarlyEndReason::from_walk_end(end, is_cut) {
        // `last` may be a return address just past the end of the object.
        let object = match reason {
            EarlyEndReason::TooManyFrames => None,
            _ => object_start(last.wrapping_sub(1)),
        };
        TABLE.count_sample(reason, object);
    }
}

/// Iterates over the counts since the last [`clear`](crate::clear), without those that are 0.
pub fn early_ends() -> impl Iterator<Item = EarlyEnds> {
    TABLE.iter()
}

/// Sets the counts of early ends to 0, for all reasons and objects.
pub(crate) fn clear() {
    TABLE.clear();
}

impl EarlyEndTable {
    const fn new() -> Self {
        Self(
            [const {
                Cell {
                    key: AtomicUsize::new(0),
                    samples: AtomicU64::new(0),
                }
            }; CELL_COUNT],
        )
    }

    /// Counts a sample whose stack ended in the object that starts at `object`, or in no object (`None`). If no cell is
    /// free for the object, the sample counts as in no object. If that has no cell either, the sample is not counted.
    fn count_sample(&self, reason: EarlyEndReason, object: Option<usize>) {
        // The index begins at 1, because the key 0 marks a free cell.
        let index = reason as usize + 1;
        let own = object.unwrap_or(0) & !REASON_MASK | index;
        if let Some(cell) = self
            .find_or_claim_cell(own)
            .or_else(|| self.find_or_claim_cell(index))
        {
            cell.samples.fetch_add(1, Relaxed);
        }
    }

    /// Returns the cell of a key, or claims a free one for it. `None` if other keys occupy all cells.
    fn find_or_claim_cell(&self, key: usize) -> Option<&Cell> {
        self.0.iter().find(|cell| {
            let found = cell.key.load(Acquire);
            found == key
                || found == 0
                    && match cell.key.compare_exchange(0, key, AcqRel, Acquire) {
                        // Another thread claimed this cell first, perhaps for the same key.
                        Ok(_) => true,
                        Err(other) => other == key,
                    }
        })
    }

    /// Iterates over the counts that are not 0.
    fn iter(&self) -> impl Iterator<Item = EarlyEnds> {
        self.0.iter().filter_map(|cell| {
            let key = cell.key.load(Acquire);
            // The key of a free cell is 0.
            let index = (key & REASON_MASK).checked_sub(1)?;
            let samples = cell.samples.load(Relaxed);
            (samples > 0).then_some(EarlyEnds {
                reason: *EarlyEndReason::ALL.get(index)?,
                object: Some(key & !REASON_MASK).filter(|start| *start != 0),
                samples,
            })
        })
    }

    /// Sets all counts to 0. Cells keep their keys, because another thread may be about to count in one.
    fn clear(&self) {
        for cell in &self.0 {
            cell.samples.store(0, Relaxed);
        }
    }
}

const _: () = assert!(MAX_FRAMES == 128, "the text of the reason names the number");

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn early_ends_are_counted_by_reason_and_object() {
        static TABLE: EarlyEndTable = EarlyEndTable::new();
        assert_eq!(TABLE.iter().count(), 0);
        for reason in EarlyEndReason::ALL {
            for object in [None, Some(0x7000), Some(0x9000)] {
                TABLE.count_sample(reason, object);
                TABLE.count_sample(reason, object);
                let mut all = TABLE.iter();
                let found = all.find(|each| each.reason == reason && each.object == object);
                assert_eq!(
                    found.map(|found| found.samples),
                    Some(2),
                    "{reason:?} {object:?}"
                );
            }
        }
        // More objects than cells: all samples are counted.
        for object in 1..1000 {
            TABLE.count_sample(EarlyEndReason::UnknownCode, Some(object << 12));
        }
        let all: Vec<_> = TABLE.iter().map(|each| each.samples).collect();
        assert_eq!(all.iter().sum::<u64>(), 30 + 999);
        TABLE.clear();
        assert_eq!(TABLE.iter().count(), 0);
    }

    #[test]
    fn only_whole_stacks_do_not_end_early() {
        let check = |end, is_cut, expected| {
            assert_eq!(
                EarlyEndReason::from_walk_end(end, is_cut),
                expected,
                "{end:?} {is_cut}"
            );
        };
        check(WalkEnd::Outermost, false, None);
        check(
            WalkEnd::Outermost,
            true,
            Some(EarlyEndReason::TooManyFrames),
        );
        check(WalkEnd::Full, false, Some(EarlyEndReason::TooManyFrames));
        check(
            WalkEnd::UnknownCode,
            false,
            Some(EarlyEndReason::UnknownCode),
        );
    }
}
