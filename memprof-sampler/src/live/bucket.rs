//! The places for samples whose addresses have one hash.

use crate::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use crate::hash::Hash;

pub(super) const WAYS: usize = 8;

/// No allocator gives an odd address: with this bit, a place is being filled or emptied.
const CLAIMED: usize = 1;

/// Zeros are an empty one.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// One line of the cache: all that a search reads.
    pub(super) addresses: [AtomicUsize; WAYS],
    /// On one other line what is at each of them.
    pub(super) samples: [Kept; WAYS],
}

/// What is known of the sample at an address.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub(super) struct Kept {
    size: AtomicU64,
    pub(super) record: AtomicU32,
    /// Grows whenever it is written, and is odd meanwhile.
    version: AtomicU32,
}

/// What is known of a live sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// As the program asked for it.
    pub size: u64,
    /// See [`records`](crate::records).
    pub record: u32,
}

/// A place that is this thread's alone, until it is filled, or dropped and so empty.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    place: &'a AtomicUsize,
    kept: &'a Kept,
    address: usize,
}

impl Bucket {
    /// Claims a place for a sample; none where all are taken.
    pub(crate) fn claim(&self, address: usize) -> Option<Claim<'_>> {
        self.exchange(0, address)
    }

    /// Claims the place that the sample at an address has.
    pub(crate) fn find(&self, address: usize) -> Option<Claim<'_>> {
        self.exchange(address, address)
    }

    /// Begins where the address says: neighbours have one bucket, and mostly meet none of each other's places so.
    #[inline(always)]
    fn exchange(&self, from: usize, address: usize) -> Option<Claim<'_>> {
        let first = Hash::of(address).own(WAYS.ilog2());
        self.exchange_at(first, from, address)
            .or_else(|| self.exchange_after(first, from, address))
    }

    /// Out of the way of what is found at once.
    #[cold]
    #[inline(never)]
    fn exchange_after(&self, first: usize, from: usize, address: usize) -> Option<Claim<'_>> {
        let mut others = (1..WAYS).map(|after| (first + after) % WAYS);
        others.find_map(|way| self.exchange_at(way, from, address))
    }

    #[inline(always)]
    fn exchange_at(&self, way: usize, from: usize, address: usize) -> Option<Claim<'_>> {
        let (place, kept) = (self.addresses.get(way)?, self.samples.get(way)?);
        // A look first: to exchange takes the line of the cache from others.
        let is_there = place.load(Relaxed) == from
            && place
                .compare_exchange(from, address | CLAIMED, Acquire, Relaxed)
                .is_ok();
        is_there.then(|| Claim {
            place,
            kept,
            address,
        })
    }

    /// Claims each sample, one after the other, and waits for what others have claimed. False where `wait` ends that.
    pub(crate) fn drain(
        &self,
        mut drained: impl FnMut(&Claim<'_>),
        mut wait: impl FnMut() -> bool,
    ) -> bool {
        for (place, _) in self.places() {
            loop {
                match place.load(Acquire) {
                    0 => break,
                    claimed if claimed & CLAIMED != 0 => {
                        if !wait() {
                            return false;
                        }
                    }
                    address => {
                        if let Some(claim) = self.find(address) {
                            drained(&claim);
                        }
                    }
                }
            }
        }
        true
    }

    /// Empties what was claimed by threads that are no more.
    pub(crate) fn abandon(&self) {
        for (place, _) in self.places() {
            if place.load(Relaxed) & CLAIMED != 0 {
                place.store(0, Release);
            }
        }
    }

    /// Visits each sample with its address, but those that come or go meanwhile.
    pub(crate) fn visit(&self, mut visit: impl FnMut(usize, Sample)) {
        for (place, kept) in self.places() {
            let version = kept.version.load(Acquire);
            let address = place.load(Relaxed);
            let sample = kept.sample();
            fence(Acquire);
            let is_whole = version % 2 == 0 && kept.version.load(Relaxed) == version;
            if is_whole && address != 0 && address & CLAIMED == 0 {
                visit(address, sample);
            }
        }
    }

    fn places(&self) -> impl Iterator<Item = (&AtomicUsize, &Kept)> {
        self.addresses.iter().zip(&self.samples)
    }
}

impl Claim<'_> {
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// The sample that the place holds.
    pub(crate) fn sample(&self) -> Sample {
        self.kept.sample()
    }

    /// Has the place hold a sample from now on.
    pub(crate) fn fill(self, sample: Sample) {
        self.kept.write(sample);
        self.place.store(self.address, Release);
        core::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.place.store(0, Release);
    }
}

impl Kept {
    fn write(&self, sample: Sample) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // Whoever reads a value below sees that the version changed: `visit`.
        fence(Release);
        self.size.store(sample.size, Relaxed);
        self.record.store(sample.record, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }

    fn sample(&self) -> Sample {
        Sample {
            size: self.size.load(Relaxed),
            record: self.record.load(Relaxed),
        }
    }
}
