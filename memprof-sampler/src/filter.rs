//! Which addresses may be sampled: a counting filter, so that nearly every `free` is told with one
//! load that it has nothing to do.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

const COUNTERS: usize = 1 << 17;

/// A counter that reached its end stays there, and says "maybe" from then on.
const FULL: u8 = u8::MAX;

/// Counts live samples by a hash of their address.
#[derive(Debug)]
pub(crate) struct Filter([AtomicU8; COUNTERS]);

impl Filter {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; COUNTERS])
    }

    /// False only where no sample has this hash.
    #[inline(always)]
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        self.counter(hash).load(Relaxed) != 0
    }

    pub(crate) fn add(&self, hash: u64) {
        self.change(hash, |count| count + 1);
    }

    pub(crate) fn subtract(&self, hash: u64) {
        self.change(hash, |count| count.saturating_sub(1));
    }

    /// Forgets all. What is added meanwhile may be forgotten too.
    pub(crate) fn clear(&self) {
        for counter in &self.0 {
            counter.store(0, Relaxed);
        }
    }

    fn change(&self, hash: u64, to: impl Fn(u8) -> u8) {
        let next = |count| (count != FULL).then(|| to(count));
        // Refused is only a counter that is full.
        let _full = self.counter(hash).fetch_update(Relaxed, Relaxed, next);
    }

    #[inline(always)]
    fn counter(&self, hash: u64) -> &AtomicU8 {
        &self.0[(hash >> (64 - COUNTERS.ilog2())) as usize]
    }
}

/// Of an address that an allocator gave. Mixed twice: one multiplication leaves addresses that
/// begin a page side by side.
#[inline(always)]
pub(crate) fn hash(address: usize) -> u64 {
    let hash = (address as u64 >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

#[cfg(test)]
mod tests {
    use super::*;

    static FILTER: Filter = Filter::new();

    #[test]
    fn a_counter_at_its_end_never_forgets_a_sample() {
        let of = hash(0x7f00_1234_5670);
        assert!(!FILTER.may_hold(of));
        FILTER.add(of);
        FILTER.subtract(of);
        assert!(!FILTER.may_hold(of));
        for _ in 0..300 {
            FILTER.add(of);
        }
        for _ in 0..299 {
            FILTER.subtract(of);
        }
        assert!(FILTER.may_hold(of));
        FILTER.clear();
        assert!(!FILTER.may_hold(of));
    }

    #[test]
    fn addresses_of_pages_are_spread() {
        let mut used = [false; 256];
        for page in 0..4096 {
            used[(hash(0x7f00_0000_0010 + page * 4096) >> 56) as usize] = true;
        }
        assert_eq!(used.iter().filter(|used| **used).count(), 256);
    }
}
