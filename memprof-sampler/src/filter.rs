//! Which addresses may be sampled: a counting filter, so that nearly every `free` is told with one
//! load that it has nothing to do.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

const COUNTERS: usize = 1 << LINE_BITS << LINES_BITS;

/// A line of the cache has the counters of blocks that lie near each other: what is allocated together is mostly
/// freed together.
const LINE_BITS: u32 = 6;
const LINES_BITS: u32 = 11;
/// So near: log2 of bytes.
const NEAR: u32 = 14;

/// A counter that reached its end stays there, and says "maybe" from then on.
const FULL: u8 = u8::MAX;

/// Counts live samples by a hash of their address.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Filter([AtomicU8; COUNTERS]);

impl Filter {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; COUNTERS])
    }

    /// False only where no sample has this counter.
    #[inline(always)]
    pub(crate) fn may_hold(&self, address: usize) -> bool {
        self.counter(address).load(Relaxed) != 0
    }

    pub(crate) fn add(&self, address: usize) {
        self.change(address, |count| count + 1);
    }

    pub(crate) fn subtract(&self, address: usize) {
        self.change(address, |count| count.saturating_sub(1));
    }

    /// Forgets all. What is added meanwhile may be forgotten too.
    pub(crate) fn clear(&self) {
        for counter in &self.0 {
            counter.store(0, Relaxed);
        }
    }

    fn change(&self, address: usize, to: impl Fn(u8) -> u8) {
        let next = |count| (count != FULL).then(|| to(count));
        // Refused is only a counter that is full.
        let _full = self.counter(address).fetch_update(Relaxed, Relaxed, next);
    }

    #[inline(always)]
    fn counter(&self, address: usize) -> &AtomicU8 {
        let line = scattered(address as u64 >> NEAR) >> (64 - LINES_BITS);
        let counter = scattered(address as u64 >> 4) >> (64 - LINE_BITS);
        &self.0[((line << LINE_BITS) | counter) as usize]
    }
}

/// The upper bits depend on all.
#[inline(always)]
fn scattered(bits: u64) -> u64 {
    bits.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Of an address that an allocator gave. Mixed twice: one multiplication leaves addresses that
/// begin a page side by side.
#[inline(always)]
pub(crate) fn hash(address: usize) -> u64 {
    let hash = scattered(address as u64 >> 4);
    (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::{HashMap, HashSet};

    use super::*;

    static FILTER: Filter = Filter::new();

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
            assert!(lines * 4 >= least * 3, "{stride}: {lines} of {least}");
            // A few times as many as if they were shared out evenly.
            let most = 4.max(3 * 1024 / (lines * 64));
            assert!(shared <= most, "{stride}: {shared} in {lines}");
        };
        for stride in [16, 48, 208, 1024, 4096, 1 << 14, 1 << 16, 1 << 21] {
            check(stride);
        }
    }

    #[test]
    fn hashes_of_pages_are_spread() {
        let mut used = [false; 256];
        for page in 0..4096 {
            used[(hash(0x7f00_0000_0010 + page * 4096) >> 56) as usize] = true;
        }
        assert_eq!(used.iter().filter(|used| **used).count(), 256);
    }
}
