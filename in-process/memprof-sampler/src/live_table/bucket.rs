//! The places for samples whose addresses have one hash.

use crate::address_hash::AddressHash;
use crate::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

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
    pub(super) samples: [CellData; WAYS],
}

/// What is known of the sample at an address.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub(super) struct CellData {
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
    /// See [`records`](crate::stack_table).
    pub record: u32,
}

/// A place that is this thread's alone, until it is filled, or dropped and so empty.
#[derive(Debug)]
pub(crate) struct ClaimedCell<'a> {
    place: &'a AtomicUsize,
    kept: &'a CellData,
    address: usize,
}

impl Bucket {
    /// Claims a place for a sample; none where all are taken.
    pub(crate) fn claim(&self, address: usize) -> Option<ClaimedCell<'_>> {
        self.claim_where(0, address)
    }

    /// Claims the place that the sample at an address has.
    pub(crate) fn find(&self, address: usize) -> Option<ClaimedCell<'_>> {
        self.claim_where(address, address)
    }

    /// Begins where the address says: neighbours have one bucket, and mostly meet none of each other's places so.
    #[inline(always)]
    fn claim_where(&self, from: usize, address: usize) -> Option<ClaimedCell<'_>> {
        let first = AddressHash::of(address).offset_bits(WAYS.ilog2());
        self.claim_way(first, from, address)
            .or_else(|| self.claim_from(first, from, address))
    }

    /// Out of the way of what is found at once.
    #[cold]
    #[inline(never)]
    fn claim_from(&self, first: usize, from: usize, address: usize) -> Option<ClaimedCell<'_>> {
        let mut others = (1..WAYS).map(|after| (first + after) % WAYS);
        others.find_map(|way| self.claim_way(way, from, address))
    }

    #[inline(always)]
    fn claim_way(&self, way: usize, from: usize, address: usize) -> Option<ClaimedCell<'_>> {
        let (place, kept) = (self.addresses.get(way)?, self.samples.get(way)?);
        // A look first: to exchange takes the line of the cache from others.
        let is_there = place.load(Relaxed) == from
            && place
                .compare_exchange(from, address | CLAIMED, Acquire, Relaxed)
                .is_ok();
        is_there.then(|| ClaimedCell {
            place,
            kept,
            address,
        })
    }

    /// Claims each sample, one after the other, and waits for what others have claimed. False where `wait` ends that.
    pub(crate) fn drain(
        &self,
        mut drained: impl FnMut(&ClaimedCell<'_>),
        mut wait: impl FnMut() -> bool,
    ) -> bool {
        for (place, _) in self.cells() {
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
    pub(crate) fn clear_claimed(&self) {
        for (place, _) in self.cells() {
            if place.load(Relaxed) & CLAIMED != 0 {
                place.store(0, Release);
            }
        }
    }

    /// Visits each sample with its address, but those that come or go meanwhile.
    pub(crate) fn visit(&self, mut visit: impl FnMut(usize, Sample)) {
        for (place, kept) in self.cells() {
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

    fn cells(&self) -> impl Iterator<Item = (&AtomicUsize, &CellData)> {
        self.addresses.iter().zip(&self.samples)
    }
}

impl ClaimedCell<'_> {
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

impl Drop for ClaimedCell<'_> {
    fn drop(&mut self) {
        self.place.store(0, Release);
    }
}

impl CellData {
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
