//! Who keeps free memory from being given back: a slab of jemalloc's stays as long as one object lives in it.
//!
//! How much is free in the slabs of a size class jemalloc counts. A sample stands for objects, and each object holds
//! its part of what is free in its slab: so by its samples the count of a class is shared out, and all shares sum to
//! the count.

use std::collections::HashMap;
use std::hash::Hash;

use memprof_sampler::{LiveSample, StackRecordId};
use rustix::io::Errno;

use super::slabs::{Slab, bins_now, free_bytes, query_slabs};
use crate::allocators::jemalloc::{Bin, Jemalloc};

/// Fewer samples do not tell who holds a class.
const FEWEST: f64 = 20.0;

/// Samples that jemalloc is asked about at a time.
const AT_A_TIME: usize = 128;

/// What is free in slabs that live objects hold.
#[derive(Debug)]
pub(super) struct PinnedProfile<K> {
    /// As jemalloc counts it, in all classes.
    pub(super) total: u64,
    /// By who holds it. What is missing in the total is held by who knows whom.
    pub(super) shares: HashMap<K, PinnedShare>,
}

/// Bytes, and the samples that they are estimated from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PinnedShare {
    /// The samples that tell it.
    pub(super) samples: u64,
    pub(super) bytes: u64,
}

/// What samples say of one class.
#[derive(Clone, Copy, Debug, Default)]
struct SampleWeight {
    samples: u64,
    /// What the objects hold for which they stand.
    bytes: f64,
    /// The sum of the squares of that of each sample.
    squares: f64,
}

/// By who holds a class, and which.
type Weights<K> = HashMap<(K, usize), SampleWeight>;

impl PinnedProfile<StackRecordId> {
    /// What the live samples of memprof's sampler tell, which takes one in `interval` bytes.
    ///
    /// # Safety
    /// `jemalloc` gave out the block of each of them, and nobody clears them meanwhile.
    ///
    /// # Errors
    /// jemalloc refused; there is no memory.
    #[expect(unsafe_code, reason = "the sampler's tables, and what they point to")]
    pub(super) unsafe fn now(jemalloc: &Jemalloc, interval: u64) -> Result<Self, Errno> {
        let bins = bins_now(jemalloc)?;
        let mut asking = SlabQuery {
            jemalloc,
            bins: &bins,
            interval,
            batch: Vec::new(),
            weights: Weights::new(),
        };
        asking
            .batch
            .try_reserve_exact(AT_A_TIME)
            .map_err(|_| Errno::NOMEM)?;
        let mut outcome = Ok(());
        let add = |sample| {
            if outcome.is_ok() {
                // SAFETY: promised by the caller, of each of them.
                outcome = unsafe { asking.add(sample) };
            }
        };
        memprof_sampler::for_each_live(add);
        outcome?;
        // SAFETY: promised by the caller.
        unsafe { asking.query_pending() }?;
        distribute(&bins, &asking.weights).ok_or(Errno::NOMEM)
    }
}

impl<K> PinnedProfile<K> {
    /// What nobody is known to hold.
    pub(super) fn unknown(&self) -> u64 {
        let known = self.shares.values().map(|share| share.bytes).sum();
        self.total.saturating_sub(known)
    }
}

/// Asks jemalloc about sample after sample.
struct SlabQuery<'a> {
    jemalloc: &'a Jemalloc,
    bins: &'a [Bin],
    interval: u64,
    /// Has room for [`AT_A_TIME`].
    batch: Vec<LiveSample>,
    weights: Weights<StackRecordId>,
}

#[expect(unsafe_code, reason = "jemalloc follows the pointers")]
impl SlabQuery<'_> {
    /// # Safety
    /// jemalloc gave out the sample's block.
    unsafe fn add(&mut self, sample: LiveSample) -> Result<(), Errno> {
        self.batch.push(sample);
        match self.batch.len() < AT_A_TIME {
            true => Ok(()),
            // SAFETY: promised by the caller, each time.
            false => unsafe { self.query_pending() },
        }
    }

    /// # Safety
    /// As [`Self::add`].
    unsafe fn query_pending(&mut self) -> Result<(), Errno> {
        let count = self.batch.len();
        if count == 0 {
            return Ok(());
        }
        let mut addresses = [0; AT_A_TIME];
        let mut slabs = [Slab::default(); AT_A_TIME];
        for (address, sample) in addresses.iter_mut().zip(&self.batch) {
            *address = sample.address;
        }
        // SAFETY: promised by the caller.
        unsafe { query_slabs(self.jemalloc, &addresses[..count], &mut slabs[..count]) }?;
        for (sample, slab) in self.batch.iter().zip(&slabs) {
            if let Some(class) = slab.bin(self.bins, sample.size) {
                let held = slab.free_bytes_for_each(&self.bins[class]);
                let held = held * objects_per_sample(sample.size, self.interval);
                add(&mut self.weights, (sample.record, class), held).ok_or(Errno::NOMEM)?;
            }
        }
        self.batch.clear();
        Ok(())
    }
}

/// How many objects a sampled one of that size stands for.
fn objects_per_sample(size: u64, interval: u64) -> f64 {
    -1.0 / libm::expm1(-(size.max(1) as f64) / interval.max(1) as f64)
}

/// Counts a sample. None where there is no memory.
fn add<K: Eq + Hash>(weights: &mut Weights<K>, key: (K, usize), held: f64) -> Option<()> {
    weights.try_reserve(1).ok()?;
    let weight = weights.entry(key).or_default();
    weight.samples += 1;
    weight.bytes += held;
    weight.squares += held * held;
    Some(())
}

/// One class while its count is given out.
#[derive(Clone, Copy, Debug, Default)]
struct SizeClassShare {
    whole: SampleWeight,
    /// Of the weights that had their shares.
    weighed: f64,
    given: u64,
}

impl SizeClassShare {
    /// As many samples of equal weights would be as sure as these (Kish's effective size): many that hold nothing
    /// beside a few that hold all are few.
    fn is_attributable(&self) -> bool {
        let SampleWeight { bytes, squares, .. } = self.whole;
        bytes > 0.0 && bytes * bytes >= FEWEST * squares
    }

    /// The next share of `free`, rounded so that all of them sum to it.
    fn next_share(&mut self, weight: &SampleWeight, free: u64) -> u64 {
        self.weighed += weight.bytes;
        let upto = (self.weighed / self.whole.bytes * free as f64).round() as u64;
        let share = upto.saturating_sub(self.given);
        self.given += share;
        share
    }
}

/// The count of each class, shared out by the weights in it where they tell. None where there is no memory.
fn distribute<K: Copy + Eq + Hash>(bins: &[Bin], weights: &Weights<K>) -> Option<PinnedProfile<K>> {
    let mut classes = Vec::new();
    classes.try_reserve_exact(bins.len()).ok()?;
    classes.resize(bins.len(), SizeClassShare::default());
    for ((_, class), weight) in weights {
        let whole = &mut classes[*class].whole;
        whole.bytes += weight.bytes;
        whole.squares += weight.squares;
    }
    let mut shares = HashMap::<K, PinnedShare>::new();
    shares.try_reserve(weights.len()).ok()?;
    for ((holder, class), weight) in weights {
        let free = free_bytes(&bins[*class]);
        let class = &mut classes[*class];
        if class.is_attributable() {
            let share = shares.entry(*holder).or_default();
            share.samples += weight.samples;
            share.bytes += class.next_share(weight, free);
        }
    }
    shares.retain(|_, share| share.bytes > 0);
    let free = bins.iter().map(free_bytes);
    Some(PinnedProfile {
        total: free.fold(0, u64::saturating_add),
        shares,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many bytes are free in slabs of 64 objects of 64 bytes.
    fn bin(free_objects: u64) -> Bin {
        Bin {
            size: 64,
            regions: 64_000 - free_objects,
            slabs: 1000,
            slab_size: 4096,
        }
    }

    /// Samples that hold so many bytes each: who, in which class, how many.
    fn weights(samples: &[(&'static str, usize, u64, f64)]) -> Weights<&'static str> {
        let mut weights = Weights::new();
        for (holder, class, count, held) in samples {
            for _ in 0..*count {
                add(&mut weights, (*holder, *class), *held).unwrap();
            }
        }
        weights
    }

    fn shares(
        bins: &[Bin],
        samples: &[(&'static str, usize, u64, f64)],
    ) -> PinnedProfile<&'static str> {
        distribute(bins, &weights(samples)).unwrap()
    }

    #[test]
    fn what_is_free_is_held_by_few_that_live_among_many_that_ended() {
        let bins = [bin(62_000), bin(1000)];
        // A dense holder has more samples, and holds next to nothing.
        let samples = [
            ("sparse", 0, 30, 4032.0),
            ("dense", 0, 300, 1.0),
            ("dense", 1, 300, 1.0),
        ];
        let pinned = shares(&bins, &samples);
        assert_eq!(pinned.total, 63_000 * 64);
        assert_eq!(pinned.unknown(), 0);
        let (sparse, dense) = (pinned.shares["sparse"], pinned.shares["dense"]);
        assert_eq!(sparse.samples, 30);
        assert_eq!(sparse.bytes + dense.bytes, pinned.total);
        // 300 of 30 * 4032 + 300 of the one class, all of the other.
        let expected = 64_000 + 62_000 * 64 * 300 / 121_260;
        assert!(dense.bytes.abs_diff(expected) <= 1, "{dense:?}");
    }

    #[test]
    fn a_class_that_few_samples_tell_is_not_attributed() {
        let bins = [bin(62_000), bin(1000), bin(5)];
        let check = |samples: &[_], unknown: u64| {
            let pinned = shares(&bins, samples);
            assert_eq!(pinned.total, 63_005 * 64);
            assert_eq!(pinned.unknown(), unknown * 64, "{pinned:?}");
        };
        check(&[], 63_005);
        check(&[("a", 0, 19, 100.0)], 63_005);
        check(&[("a", 0, 20, 100.0)], 1005);
        check(
            &[("a", 0, 10, 100.0), ("b", 0, 10, 100.0), ("b", 1, 40, 5.0)],
            5,
        );
        // One that holds nearly all, beside many that hold nothing.
        check(&[("a", 0, 1, 10_000.0), ("b", 0, 500, 0.1)], 63_005);
        check(&[("a", 0, 500, 0.0)], 63_005);
    }

    #[test]
    fn shares_of_a_class_sum_to_its_count() {
        const HOLDERS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
        for free in [1, 7, 999, 61_234] {
            let samples = HOLDERS.map(|holder| (holder, 0, 9, 3.7));
            let pinned = shares(&[bin(free)], &samples);
            assert_eq!(pinned.unknown(), 0);
            let even = free * 64 / 7;
            let is_even = |share: &PinnedShare| share.bytes.abs_diff(even) <= 1;
            assert!(pinned.shares.values().all(is_even), "{pinned:?}");
        }
    }

    #[test]
    fn a_sample_stands_for_objects_of_its_size() {
        assert!((objects_per_sample(64, 64 << 10) - 1024.5).abs() < 0.1);
        assert!((objects_per_sample(64 << 20, 64 << 10) - 1.0).abs() < 1e-9);
        assert!(objects_per_sample(0, 0).is_finite());
    }
}
