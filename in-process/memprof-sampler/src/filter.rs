//! Which addresses may be sampled: a counting filter, so that nearly every `free` is told with one
//! load that it has nothing to do.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::address_hash::AddressHash;

const COUNTERS: usize = 1 << LINE_BITS << LINES_BITS;

/// A line of the cache has the counters of blocks that lie near each other.
const LINE_BITS: u32 = 6;
const LINES_BITS: u32 = 11;

/// Above its tags, a byte counts samples.
const ONE: u8 = 1 << TAG_BITS;
/// Below lies the exclusive or of the tags of all that it counts: of a single one, its own.
const TAG_BITS: u32 = 3;
const TAGS: u8 = ONE - 1;

/// A counter that reached its end stays there, and says "maybe" from then on.
const FULL: u8 = u8::MAX >> TAG_BITS;

/// Counts live samples by a hash of their address.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Filter([AtomicU8; COUNTERS]);

impl Filter {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; COUNTERS])
    }

    /// False only where no sample has this address's counter.
    #[inline(always)]
    pub(crate) fn may_hold(&self, address: usize) -> bool {
        self.counter(address).load(Relaxed) != 0
    }

    /// A second look, at the tags: false only where no sample has this address.
    pub(crate) fn tag_may_hold(&self, address: usize) -> bool {
        let counter = self.counter(address).load(Relaxed);
        counter / ONE > 1 || counter == ONE | tag(address)
    }

    pub(crate) fn add(&self, address: usize) {
        self.change(address, |counter| counter.checked_add(ONE));
    }

    pub(crate) fn subtract(&self, address: usize) {
        self.change(address, |counter| counter.checked_sub(ONE));
    }

    /// Forgets all. What is added meanwhile may be forgotten too.
    pub(crate) fn clear(&self) {
        for counter in &self.0 {
            counter.store(0, Relaxed);
        }
    }

    fn change(&self, address: usize, to: impl Fn(u8) -> Option<u8>) {
        let next = |counter| {
            let changed = to(counter).filter(|_| counter / ONE != FULL)?;
            Some(changed ^ tag(address))
        };
        // Refused is only a counter that is full.
        let _full = self.counter(address).fetch_update(Relaxed, Relaxed, next);
    }

    #[inline(always)]
    fn counter(&self, address: usize) -> &AtomicU8 {
        let hash = AddressHash::of(address);
        let line = hash.locality_bits(LINES_BITS);
        &self.0[(line << LINE_BITS) | hash.offset_bits(LINE_BITS)]
    }
}

/// What tells an address from most others that have its counter.
#[inline(always)]
fn tag(address: usize) -> u8 {
    AddressHash::of(address).offset_bits(LINE_BITS + TAG_BITS) as u8 & TAGS
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::address_hash::NEAR;

    static FILTER: Filter = Filter::new();

    #[test]
    fn most_neighbours_of_a_sample_are_no_samples() {
        static FILTER: Filter = Filter::new();
        let block = |at: usize| 0x7f00_0000_0010 + at * 16;
        let blocks = 1 << NEAR >> 4;
        let taken = |but: usize| {
            let others = (0..blocks).filter(|at| *at != but);
            others.filter(|at| FILTER.tag_may_hold(block(*at))).count()
        };
        for at in 0..blocks {
            FILTER.add(block(at));
            assert!(FILTER.tag_may_hold(block(at)));
            assert!(taken(at) <= blocks / 256, "{at}: {}", taken(at));
            FILTER.subtract(block(at));
        }
        // Where several share a counter, each is found, and the last one alone.
        (0..blocks).for_each(|at| FILTER.add(block(at)));
        for at in 0..blocks {
            assert!((at..blocks).all(|at| FILTER.tag_may_hold(block(at))));
            FILTER.subtract(block(at));
        }
        assert_eq!(taken(blocks), 0);
    }

    #[test]
    fn a_counter_at_its_end_never_forgets_a_sample() {
        let block = 0x7f00_1234_5670;
        assert!(!FILTER.may_hold(block));
        FILTER.add(block);
        FILTER.subtract(block);
        assert!(!FILTER.may_hold(block));
        for _ in 0..300 {
            FILTER.add(block);
        }
        for _ in 0..299 {
            FILTER.subtract(block);
        }
        assert!(FILTER.may_hold(block));
        FILTER.clear();
        assert!(!FILTER.may_hold(block));
    }

    /// How many counters these blocks share at the most, and on how many lines they lie.
    fn spread(blocks: impl Iterator<Item = usize>) -> (usize, usize) {
        let mut counters = HashMap::new();
        let start = (&raw const FILTER).addr();
        for block in blocks {
            *counters
                .entry((&raw const *FILTER.counter(block)).addr() - start)
                .or_insert(0) += 1;
        }
        let lines: HashSet<usize> = counters.keys().map(|counter| counter / 64).collect();
        (counters.into_values().max().unwrap(), lines.len())
    }

    #[test]
    fn blocks_are_spread_and_neighbours_share_a_line() {
        // Small blocks side by side.
        assert_eq!(spread((0..64).map(|at| 0x7f00_0000_0010 + at * 16)), (2, 1));
        let check = |stride: usize| {
            let blocks = (0..1024).map(|at| 0x7f00_0000_0010 + at * stride);
            let (shared, lines) = spread(blocks);
            let least = (1024 * stride.min(1 << NEAR)) >> NEAR;
            assert!(lines * 8 >= least * 5, "{stride}: {lines} of {least}");
            // A few times as many as if they were shared out evenly.
            let most = 4.max(3 * 1024 / (lines * 64));
            assert!(shared <= most, "{stride}: {shared} in {lines}");
        };
        for stride in [16, 48, 208, 1024, 4096, 1 << 14, 1 << 16, 1 << 21] {
            check(stride);
        }
    }
}
