//! The life of a record: how many use it, and in which generation of its memory.
//!
//! A record that nothing uses may be evicted, and its memory hold another one. A sample that lives uses its record, and
//! so does a thread that compares stacks. Generations differ, so a thread that was stopped meanwhile finds out.

use crate::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

/// The generation in the upper half, 0 for none; users in the lower.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Life(pub(crate) AtomicU64);

const USERS: u64 = u32::MAX as u64;

fn generation_of(bits: u64) -> u32 {
    (bits >> 32) as u32
}

impl Life {
    /// Begins a generation, with one user. All of the record is written.
    pub(crate) fn begin(&self, generation: u32) {
        self.0.store(u64::from(generation) << 32 | 1, Release);
    }

    /// Becomes a user, unless the record is evicted. What it holds stays until [`Self::release`].
    pub(crate) fn acquire(&self) -> bool {
        self.acquire_if(|generation| generation != 0)
    }

    /// The same if the record is that of a generation.
    pub(crate) fn acquire_of(&self, expected: u32) -> bool {
        self.acquire_if(|generation| generation == expected && generation != 0)
    }

    fn acquire_if(&self, is_meant: impl Fn(u32) -> bool) -> bool {
        let more = |bits| is_meant(generation_of(bits)).then_some(bits + 1);
        self.0.fetch_update(Acquire, Relaxed, more).is_ok()
    }

    /// Is a user no more. Returns the generation.
    pub(crate) fn release(&self) -> u32 {
        generation_of(self.0.fetch_sub(1, Release))
    }

    /// The generation, if there is no user.
    pub(crate) fn idle_generation(&self) -> Option<u32> {
        let bits = self.0.load(Acquire);
        let is_idle = bits & USERS == 0 && bits != 0;
        is_idle.then_some(generation_of(bits))
    }

    /// Ends that generation, unless there is a user: true for the one thread that may change the record then.
    pub(crate) fn evict(&self, generation: u32) -> bool {
        let idle = u64::from(generation) << 32;
        let is_evicted = self.0.compare_exchange(idle, 0, AcqRel, Relaxed).is_ok();
        // A reader that sees what this thread writes from now on sees that the generation ended: `read`.
        fence(Release);
        is_evicted
    }

    /// The generation now; 0 for none.
    pub(crate) fn generation(&self) -> u32 {
        generation_of(self.0.load(Acquire))
    }

    /// What `read` reads of the record without being a user. `None` if it was evicted before or meanwhile.
    pub(crate) fn read<T>(&self, read: impl FnOnce(u32) -> Option<T>) -> Option<T> {
        let generation = self.generation();
        if generation == 0 {
            return None;
        }
        let seen = read(generation)?;
        fence(Acquire);
        (generation_of(self.0.load(Relaxed)) == generation).then_some(seen)
    }
}
