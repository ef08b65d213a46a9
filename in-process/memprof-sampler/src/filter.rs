//! Counting filter of sampled addresses. With one load, nearly every `free` can tell that its block is not sampled.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::address_hash::AddressHash;

/// Number of one-byte counters: 128 KiB in all.
const COUNTER_COUNT: usize = 1 << LINE_BITS << LINES_BITS;

/// log2 of the counters in a cache line. Neighbouring blocks share a line.
const LINE_BITS: u32 = 6;
/// log2 of the cache lines.
const LINES_BITS: u32 = 11;

/// One sample: the upper five bits of a counter hold the number of samples.
const ONE_SAMPLE: u8 = 1 << TAG_BITS;
/// Number of tag bits: the lower bits of a counter. They hold the exclusive or of the tags of all its samples, so with
/// one sample they are its tag.
const TAG_BITS: u32 = 3;
const TAG_MASK: u8 = ONE_SAMPLE - 1;

/// Largest count. A counter that reaches it stays there until [`Filter::clear`], and all its blocks count as possibly
/// sampled.
const MAX_COUNT: u8 = u8::MAX >> TAG_BITS;

/// Counts live samples by a hash of their addresses.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Filter([AtomicU8; COUNTER_COUNT]);

impl Filter {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; COUNTER_COUNT])
    }

    /// Returns whether the block at an address is possibly sampled, by its counter alone. Returns false only if no
    /// sample shares the counter, so the block is certainly not sampled.
    #[inline(always)]
    pub(crate) fn may_hold(&self, address: usize) -> bool {
        self.counter(address).load(Relaxed) != 0
    }

    /// Returns whether the block at an address is possibly sampled, by its counter and tag. Returns false only if the
    /// block is certainly not sampled. Rejects more blocks than [`Self::may_hold`], but computes two hashes.
    pub(crate) fn may_hold_by_tag(&self, address: usize) -> bool {
        let counter = self.counter(address).load(Relaxed);
        // With several samples, their tags are mixed and say nothing about one address.
        counter / ONE_SAMPLE > 1 || counter == ONE_SAMPLE | tag(address)
    }

    /// Counts an address as sampled. A counter that reaches [`MAX_COUNT`] stays there.
    pub(crate) fn add(&self, address: usize) {
        self.update_counter(address, |counter| counter.checked_add(ONE_SAMPLE));
    }

    /// Counts an address as no longer sampled, unless its counter has reached [`MAX_COUNT`].
    pub(crate) fn subtract(&self, address: usize) {
        self.update_counter(address, |counter| counter.checked_sub(ONE_SAMPLE));
    }

    /// Sets all counters to 0. Samples added at the same time may be lost.
    pub(crate) fn clear(&self) {
        for counter in &self.0 {
            counter.store(0, Relaxed);
        }
    }

    /// Applies `change` to the address's counter, and toggles the address's tag in it. A counter at [`MAX_COUNT`], or
    /// for which `change` returns `None`, keeps its value.
    fn update_counter(&self, address: usize, change: impl Fn(u8) -> Option<u8>) {
        let next = |counter| {
            let changed = change(counter).filter(|_| counter / ONE_SAMPLE != MAX_COUNT)?;
            Some(changed ^ tag(address))
        };
        // The update fails only for a counter that keeps its value.
        let _full = self.counter(address).fetch_update(Relaxed, Relaxed, next);
    }

    /// Returns the counter of an address. Other addresses share it.
    #[inline(always)]
    fn counter(&self, address: usize) -> &AtomicU8 {
        let hash = AddressHash::new(address);
        let line = hash.locality_bits(LINES_BITS);
        &self.0[(line << LINE_BITS) | hash.block_bits(LINE_BITS)]
    }
}

/// Returns three bits that distinguish an address from most others with the same counter.
#[inline(always)]
fn tag(address: usize) -> u8 {
    // The three bits of the hash below those that select the counter.
    AddressHash::new(address).block_bits(LINE_BITS + TAG_BITS) as u8 & TAG_MASK
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::address_hash::NEIGHBOURHOOD_BITS;

    static FILTER: Filter = Filter::new();

    #[test]
    fn tags_of_neighbours_rarely_match() {
        static FILTER: Filter = Filter::new();
        let block = |index: usize| 0x7f00_0000_0010 + index * 16;
        let blocks = 1 << NEIGHBOURHOOD_BITS >> 4;
        let matching = |but: usize| {
            let others = (0..blocks).filter(|index| *index != but);
            others
                .filter(|index| FILTER.may_hold_by_tag(block(*index)))
                .count()
        };
        for index in 0..blocks {
            FILTER.add(block(index));
            assert!(FILTER.may_hold_by_tag(block(index)));
            assert!(
                matching(index) <= blocks / 256,
                "{index}: {}",
                matching(index)
            );
            FILTER.subtract(block(index));
        }
        // Blocks that share a counter all match, until the last of them is subtracted.
        (0..blocks).for_each(|index| FILTER.add(block(index)));
        for index in 0..blocks {
            assert!((index..blocks).all(|index| FILTER.may_hold_by_tag(block(index))));
            FILTER.subtract(block(index));
        }
        assert_eq!(matching(blocks), 0);
    }

    #[test]
    fn full_counter_keeps_matching_until_cleared() {
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

    /// Returns the largest number of blocks that share a counter, and the number of cache lines on which the blocks'
    /// counters are.
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
    fn counters_of_blocks_are_distributed_and_neighbours_share_a_line() {
        // Small blocks that are neighbours have counters on one line.
        assert_eq!(
            spread((0..64).map(|index| 0x7f00_0000_0010 + index * 16)),
            (2, 1)
        );
        let check = |stride: usize| {
            let blocks = (0..1024).map(|index| 0x7f00_0000_0010 + index * stride);
            let (shared, lines) = spread(blocks);
            let least = (1024 * stride.min(1 << NEIGHBOURHOOD_BITS)) >> NEIGHBOURHOOD_BITS;
            assert!(lines * 8 >= least * 5, "{stride}: {lines} of {least}");
            // Three times an even distribution, and at least 4.
            let most = 4.max(3 * 1024 / (lines * 64));
            assert!(shared <= most, "{stride}: {shared} in {lines}");
        };
        for stride in [16, 48, 208, 1024, 4096, 1 << 14, 1 << 16, 1 << 21] {
            check(stride);
        }
    }
}
