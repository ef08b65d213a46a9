//! Counts of a record's samples.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use super::segments::{
    FREED_BYTES, FREED_OBJECTS, PEAK, PEAK_BYTES, PEAK_OBJECTS, TOTAL_BYTES, TOTAL_OBJECTS, word,
};
use crate::tally;

/// Saves the live counts that a record had at the last peak, the latest maximum of live bytes. The caller is about to
/// change the counts. Does nothing if an earlier change has saved them.
pub(super) fn save_peak_counts(words: &[AtomicU64], record: u32) {
    let peak = tally::peak_number();
    let word = |index: usize| word(words, record, index);
    let Some(saved_peak) = word(PEAK) else {
        return;
    };
    // The counts are nearly always saved already, and a load is cheaper than an exchange. Of several threads, only the
    // one whose exchange is first saves them.
    if saved_peak.load(Relaxed) != peak
        && saved_peak.swap(peak, Relaxed) != peak
        && let (Some(at_peak), Some(peak_bytes)) = (word(PEAK_OBJECTS), word(PEAK_BYTES))
        && let Some([objects, bytes]) = live_counts(words, record)
    {
        at_peak.store(objects, Relaxed);
        peak_bytes.store(bytes, Relaxed);
    }
}

/// Returns the number of a record's live samples, and their bytes. `None` if `record` is beyond the last segment.
pub(super) fn live_counts(words: &[AtomicU64], record: u32) -> Option<[u64; 2]> {
    // The freed counts are loaded first, so that every freed sample is also in the totals.
    let word = |index: usize| word(words, record, index).map(|word| word.load(Acquire));
    let freed = [word(FREED_OBJECTS)?, word(FREED_BYTES)?];
    let total = [word(TOTAL_OBJECTS)?, word(TOTAL_BYTES)?];
    Some([
        total[0].saturating_sub(freed[0]),
        total[1].saturating_sub(freed[1]),
    ])
}

/// Returns whether an idle record had live samples at the last peak, the latest maximum of live bytes. Profiles of the
/// peak show such samples. An idle record that has not changed since the peak was idle then, too.
pub(super) fn was_live_at_peak(words: &[AtomicU64], record: u32) -> bool {
    let has =
        |index, value| word(words, record, index).is_some_and(|word| word.load(Relaxed) == value);
    has(PEAK, tally::peak_number()) && !has(PEAK_OBJECTS, 0)
}
