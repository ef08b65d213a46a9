//! The samples that were counted for a record, in its words.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use super::segments::{
    FREED_BYTES, FREED_OBJECTS, PEAK, PEAK_BYTES, PEAK_OBJECTS, TOTAL_BYTES, TOTAL_OBJECTS, word,
};
use crate::tally;

/// Keeps what the record held at the last peak, before its first change since.
pub(super) fn save_peak(words: &[AtomicU64], record: u32) {
    let peak = tally::peaks();
    let word = |at: usize| word(words, record, at);
    let Some(known) = word(PEAK) else {
        return;
    };
    // Nearly always it is known: a load is cheaper than an exchange.
    if known.load(Relaxed) != peak
        && known.swap(peak, Relaxed) != peak
        && let (Some(at_peak), Some(peak_bytes)) = (word(PEAK_OBJECTS), word(PEAK_BYTES))
        && let Some([objects, bytes]) = live_counts(words, record)
    {
        at_peak.store(objects, Relaxed);
        peak_bytes.store(bytes, Relaxed);
    }
}

/// The samples of a record that were not freed, and their sizes together.
pub(super) fn live_counts(words: &[AtomicU64], record: u32) -> Option<[u64; 2]> {
    // Freed first: what is freed meanwhile was counted before.
    let word = |at: usize| word(words, record, at).map(|word| word.load(Acquire));
    let freed = [word(FREED_OBJECTS)?, word(FREED_BYTES)?];
    let total = [word(TOTAL_OBJECTS)?, word(TOTAL_BYTES)?];
    Some([
        total[0].saturating_sub(freed[0]),
        total[1].saturating_sub(freed[1]),
    ])
}

/// Whether samples of an idle record lived at the last peak, which the profile of a tally shows.
pub(super) fn lived_at_peak(words: &[AtomicU64], record: u32) -> bool {
    let has = |at, value| word(words, record, at).is_some_and(|word| word.load(Relaxed) == value);
    has(PEAK, tally::peaks()) && !has(PEAK_OBJECTS, 0)
}
