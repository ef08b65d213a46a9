//! Use count and generation of a record, which decide when it may be evicted.
//!
//! A record without users may be evicted, and its memory reused for another record. Its users are its live samples, and
//! threads while they compare stacks. A record that reuses memory gets a new generation, by which an interrupted thread
//! notices the eviction.

use crate::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

/// Generation in the upper half (0: no record), number of users in the lower half.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Life(pub(crate) AtomicU64);

/// Mask of the number of users.
const USERS_MASK: u64 = u32::MAX as u64;

/// Returns the generation, which is the upper half of the bits.
fn generation_of(bits: u64) -> u32 {
    (bits >> 32) as u32
}

impl Life {
    /// Begins a generation with one user. The record must already be written.
    pub(crate) fn begin(&self, generation: u32) {
        self.0.store(u64::from(generation) << 32 | 1, Release);
    }

    /// Adds a user and returns true, unless the record is evicted. The stack of a record with a user does not change.
    pub(crate) fn acquire(&self) -> bool {
        self.acquire_if(|generation| generation != 0)
    }

    /// Adds a user and returns true, if the record has the generation `expected` and is not evicted. Otherwise returns
    /// false.
    pub(crate) fn acquire_generation(&self, expected: u32) -> bool {
        self.acquire_if(|generation| generation == expected && generation != 0)
    }

    /// Adds a user if `is_expected` accepts the generation. Returns whether the user was added.
    fn acquire_if(&self, is_expected: impl Fn(u32) -> bool) -> bool {
        let add_user = |bits| is_expected(generation_of(bits)).then_some(bits + 1);
        self.0.fetch_update(Acquire, Relaxed, add_user).is_ok()
    }

    /// Removes a user. Returns the generation of the record, which did not end while the record had this user.
    pub(crate) fn release(&self) -> u32 {
        generation_of(self.0.fetch_sub(1, Release))
    }

    /// Returns the generation of the record if it has no user. `None` if it has one, or is evicted.
    pub(crate) fn idle_generation(&self) -> Option<u32> {
        let bits = self.0.load(Acquire);
        let is_idle = bits & USERS_MASK == 0 && bits != 0;
        is_idle.then_some(generation_of(bits))
    }

    /// Ends the generation, unless the record has a user. Returns true only in the thread that ended it, which may then
    /// overwrite the record.
    pub(crate) fn evict(&self, generation: u32) -> bool {
        let idle = u64::from(generation) << 32;
        let is_evicted = self.0.compare_exchange(idle, 0, AcqRel, Relaxed).is_ok();
        // Pairs with the fence in `read_unless_evicted`: a reader that sees a value written after this fence also sees
        // the end of the generation.
        fence(Release);
        is_evicted
    }

    /// Returns the generation of the record; 0 if it is evicted.
    pub(crate) fn generation(&self) -> u32 {
        generation_of(self.0.load(Acquire))
    }

    /// Calls `read` with the generation, without becoming a user. `None` if the record was evicted before or during the
    /// call.
    pub(crate) fn read_unless_evicted<T>(&self, read: impl FnOnce(u32) -> Option<T>) -> Option<T> {
        let generation = self.generation();
        if generation == 0 {
            return None;
        }
        let value = read(generation)?;
        fence(Acquire);
        (generation_of(self.0.load(Relaxed)) == generation).then_some(value)
    }
}
