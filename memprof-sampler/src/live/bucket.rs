//! The places for samples whose addresses have one hash.

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

impl Bucket {
    /// Adds a sample; false where all places are taken.
    pub(crate) fn insert(&self, address: usize, sample: Sample) -> bool {
        self.places().any(|(place, kept)| {
            let is_free = claim(place, 0, address | CLAIMED);
            if is_free {
                kept.write(sample);
                place.store(address, Release);
            }
            is_free
        })
    }

    /// Removes the sample at an address.
    pub(crate) fn take(&self, address: usize) -> Option<Sample> {
        self.places().find_map(|(place, kept)| {
            claim(place, address, address | CLAIMED).then(|| {
                let sample = kept.sample();
                place.store(0, Release);
                sample
            })
        })
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

/// Whether the place held `from`, and is this thread's alone now.
fn claim(place: &AtomicUsize, from: usize, to: usize) -> bool {
    // A look first: to exchange takes the line of the cache from others.
    place.load(Relaxed) == from && place.compare_exchange(from, to, Acquire, Relaxed).is_ok()
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
