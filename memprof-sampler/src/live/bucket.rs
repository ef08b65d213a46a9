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
    sizes: [AtomicU64; WAYS],
    pub(super) records: [AtomicU32; WAYS],
    /// A number that grows whenever a place is filled, and is odd meanwhile.
    versions: [AtomicU32; WAYS],
}

/// What is known of a live sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// As the program asked for it.
    pub size: u64,
    /// See [`records`](crate::records).
    pub record: u32,
}

/// One place of a bucket.
struct Place<'a> {
    address: &'a AtomicUsize,
    size: &'a AtomicU64,
    record: &'a AtomicU32,
    version: &'a AtomicU32,
}

impl Bucket {
    /// Adds a sample; false where all places are taken.
    pub(crate) fn insert(&self, address: usize, sample: Sample) -> bool {
        self.places().any(|place| {
            let is_free = place.claim(0, address | CLAIMED);
            if is_free {
                let version = place.version.load(Relaxed);
                place.version.store(version.wrapping_add(1), Relaxed);
                // Whoever reads a value below sees that the version changed: `visit`.
                fence(Release);
                place.size.store(sample.size, Relaxed);
                place.record.store(sample.record, Relaxed);
                place.version.store(version.wrapping_add(2), Release);
                place.address.store(address, Release);
            }
            is_free
        })
    }

    /// Removes the sample at an address.
    pub(crate) fn take(&self, address: usize) -> Option<Sample> {
        self.places().find_map(|place| {
            place.claim(address, address | CLAIMED).then(|| {
                let sample = place.sample();
                place.address.store(0, Release);
                sample
            })
        })
    }

    /// Visits each sample with its address, but those that come or go meanwhile.
    pub(crate) fn visit(&self, mut visit: impl FnMut(usize, Sample)) {
        for place in self.places() {
            let version = place.version.load(Acquire);
            let address = place.address.load(Relaxed);
            let sample = place.sample();
            fence(Acquire);
            let is_whole = version % 2 == 0 && place.version.load(Relaxed) == version;
            if is_whole && address != 0 && address & CLAIMED == 0 {
                visit(address, sample);
            }
        }
    }

    fn places(&self) -> impl Iterator<Item = Place<'_>> {
        let addresses = self.addresses.iter().zip(&self.sizes);
        let numbers = self.records.iter().zip(&self.versions);
        let places = addresses.zip(numbers);
        places.map(|((address, size), (record, version))| Place {
            address,
            size,
            record,
            version,
        })
    }
}

impl Place<'_> {
    /// Whether it held `from`, and is this thread's alone now.
    fn claim(&self, from: usize, to: usize) -> bool {
        // A look first: to exchange takes the line of the cache from others.
        self.address.load(Relaxed) == from
            && self
                .address
                .compare_exchange(from, to, Acquire, Relaxed)
                .is_ok()
    }

    fn sample(&self) -> Sample {
        Sample {
            size: self.size.load(Relaxed),
            record: self.record.load(Relaxed),
        }
    }
}
