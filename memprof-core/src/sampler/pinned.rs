//! The pinned profile: shows which stacks keep free memory from being released. A jemalloc slab stays as long as one
//! object in it is live.
//!
//! jemalloc counts the free memory in the slabs of a size class. Each live object pins its part of the free memory in
//! its slab, and a sample represents several objects. So the free memory of a class is divided among its samples, and
//! the shares add up to the total.

use std::collections::HashMap;
use std::hash::Hash;

use memprof_sampler::{LiveSample, StackRecordId};
use rustix::io::Errno;

use super::slabs::{Slab, bin_free_bytes, query_slabs, read_current_bins};
use crate::allocators::jemalloc::{Bin, Jemalloc};

/// Minimum effective number of samples for an estimate of the holders of a size class.
const MIN_EFFECTIVE_SAMPLES: f64 = 20.0;

/// Number of samples per query to jemalloc.
const BATCH_SIZE: usize = 128;

/// Free bytes in slabs that live objects keep from being released.
#[derive(Debug)]
pub(super) struct PinnedProfile<K> {
    /// Free bytes of all size classes, as jemalloc counts them.
    pub(super) total: u64,
    /// Shares by holder. The holders of the rest are unknown.
    pub(super) shares: HashMap<K, PinnedShare>,
}

/// Pinned bytes, and the samples from which they are estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PinnedShare {
    /// Number of samples.
    pub(super) samples: u64,
    pub(super) bytes: u64,
}

/// Weight of the samples of one holder in one size class.
#[derive(Clone, Copy, Debug, Default)]
struct SampleWeight {
    samples: u64,
    /// Bytes pinned by the objects that the samples represent.
    bytes: f64,
    /// Sum over the samples of their squared pinned bytes.
    squares: f64,
}

/// Weights by holder and size class index.
type Weights<K> = HashMap<(K, usize), SampleWeight>;

impl PinnedProfile<StackRecordId> {
    /// Estimates from the live samples of memprof's sampler which stacks pin free memory. `interval` is the sample
    /// interval in bytes.
    ///
    /// # Safety
    /// `jemalloc` allocated the block of each sample, and no thread clears the samples during the call.
    ///
    /// # Errors
    /// jemalloc refused, or ENOMEM.
    #[expect(unsafe_code, reason = "the sampler's tables, and what they point to")]
    pub(super) unsafe fn estimate_from_samples(
        jemalloc: &Jemalloc,
        interval: u64,
    ) -> Result<Self, Errno> {
        let bins = read_current_bins(jemalloc)?;
        let mut query = SlabQuery {
            jemalloc,
            bins: &bins,
            interval,
            batch: Vec::new(),
            weights: Weights::new(),
        };
        query
            .batch
            .try_reserve_exact(BATCH_SIZE)
            .map_err(|_| Errno::NOMEM)?;
        let mut outcome = Ok(());
        let add = |sample| {
            if outcome.is_ok() {
                // SAFETY: the caller guarantees that `jemalloc` allocated the block of each sample.
                outcome = unsafe { query.add_sample(sample) };
            }
        };
        memprof_sampler::for_each_live_sample(add);
        outcome?;
        // SAFETY: the caller guarantees that `jemalloc` allocated the block of each sample.
        unsafe { query.query_batch() }?;
        distribute_free_bytes(&bins, &query.weights).ok_or(Errno::NOMEM)
    }
}

impl<K> PinnedProfile<K> {
    /// Free bytes with unknown holders: those of size classes with too few samples.
    pub(super) fn unknown_bytes(&self) -> u64 {
        let known = self.shares.values().map(|share| share.bytes).sum();
        self.total.saturating_sub(known)
    }
}

/// Queries jemalloc about samples in batches, and collects their weights.
struct SlabQuery<'a> {
    jemalloc: &'a Jemalloc,
    bins: &'a [Bin],
    interval: u64,
    /// Samples to query next. Has capacity for [`BATCH_SIZE`].
    batch: Vec<LiveSample>,
    weights: Weights<StackRecordId>,
}

#[expect(unsafe_code, reason = "jemalloc follows the pointers")]
impl SlabQuery<'_> {
    /// Adds a sample to the batch, and queries jemalloc if the batch is full.
    ///
    /// # Safety
    /// jemalloc allocated the block of the sample.
    ///
    /// # Errors
    /// jemalloc refused, or ENOMEM.
    unsafe fn add_sample(&mut self, sample: LiveSample) -> Result<(), Errno> {
        self.batch.push(sample);
        match self.batch.len() < BATCH_SIZE {
            true => Ok(()),
            // SAFETY: the caller of each `add_sample` guarantees that jemalloc allocated the block.
            false => unsafe { self.query_batch() },
        }
    }

    /// Queries jemalloc about the samples in the batch, adds their weights, and empties the batch. Skips a sample that
    /// is in no slab of a size class.
    ///
    /// # Safety
    /// jemalloc allocated the block of each sample in the batch.
    ///
    /// # Errors
    /// jemalloc refused, or ENOMEM.
    unsafe fn query_batch(&mut self) -> Result<(), Errno> {
        let count = self.batch.len();
        if count == 0 {
            return Ok(());
        }
        let mut addresses = [0; BATCH_SIZE];
        let mut slabs = [Slab::default(); BATCH_SIZE];
        for (address, sample) in addresses.iter_mut().zip(&self.batch) {
            *address = sample.address;
        }
        // SAFETY: the caller guarantees that jemalloc allocated the block of each sample.
        unsafe { query_slabs(self.jemalloc, &addresses[..count], &mut slabs[..count]) }?;
        for (sample, slab) in self.batch.iter().zip(&slabs) {
            if let Some(class) = slab.find_bin(self.bins, sample.size) {
                let pinned = slab.free_bytes_per_object(&self.bins[class]);
                let pinned = pinned * objects_per_sample(sample.size, self.interval);
                add_weight(&mut self.weights, (sample.record, class), pinned)
                    .ok_or(Errno::NOMEM)?;
            }
        }
        self.batch.clear();
        Ok(())
    }
}

/// Number of objects that a sampled object of `size` bytes represents: the inverse of the probability that it is
/// sampled, 1 - e^-(size/interval).
fn objects_per_sample(size: u64, interval: u64) -> f64 {
    -1.0 / libm::expm1(-(size.max(1) as f64) / interval.max(1) as f64)
}

/// Adds one sample, whose objects pin `pinned` bytes, to the weight of its holder and size class. `None` if memory runs
/// out.
fn add_weight<K: Eq + Hash>(weights: &mut Weights<K>, key: (K, usize), pinned: f64) -> Option<()> {
    weights.try_reserve(1).ok()?;
    let weight = weights.entry(key).or_default();
    weight.samples += 1;
    weight.bytes += pinned;
    weight.squares += pinned * pinned;
    Some(())
}

/// Distribution of the free bytes of one size class.
#[derive(Clone, Copy, Debug, Default)]
struct SizeClassShare {
    total: SampleWeight,
    /// Sum of the weights that have received their shares.
    distributed_weight: f64,
    distributed_bytes: u64,
}

impl SizeClassShare {
    /// Whether the samples suffice to name holders, by Kish's effective sample size: the number of samples of equal
    /// weight that would be as precise. Many samples that pin nothing and a few that pin everything count as few.
    fn is_attributable(&self) -> bool {
        let SampleWeight { bytes, squares, .. } = self.total;
        bytes > 0.0 && bytes * bytes >= MIN_EFFECTIVE_SAMPLES * squares
    }

    /// Returns the next share of `free` bytes, proportional to the weight. Rounding errors are carried over, so that
    /// the shares add up to `free`.
    fn take_next_share(&mut self, weight: &SampleWeight, free: u64) -> u64 {
        self.distributed_weight += weight.bytes;
        let end = (self.distributed_weight / self.total.bytes * free as f64).round() as u64;
        let share = end.saturating_sub(self.distributed_bytes);
        self.distributed_bytes += share;
        share
    }
}

/// Distributes the free bytes of each size class over the stacks of its samples, by weight, if there are enough
/// samples. `weights` gives the weight for each stack and index in `bins`. `None` if memory runs out.
fn distribute_free_bytes<K: Copy + Eq + Hash>(
    bins: &[Bin],
    weights: &Weights<K>,
) -> Option<PinnedProfile<K>> {
    let mut classes = Vec::new();
    classes.try_reserve_exact(bins.len()).ok()?;
    classes.resize(bins.len(), SizeClassShare::default());
    for ((_, class), weight) in weights {
        let total = &mut classes[*class].total;
        total.bytes += weight.bytes;
        total.squares += weight.squares;
    }
    let mut shares = HashMap::<K, PinnedShare>::new();
    shares.try_reserve(weights.len()).ok()?;
    for ((holder, class), weight) in weights {
        let free = bin_free_bytes(&bins[*class]);
        let class = &mut classes[*class];
        if class.is_attributable() {
            let share = shares.entry(*holder).or_default();
            share.samples += weight.samples;
            share.bytes += class.take_next_share(weight, free);
        }
    }
    shares.retain(|_, share| share.bytes > 0);
    let free = bins.iter().map(bin_free_bytes);
    Some(PinnedProfile {
        total: free.fold(0, u64::saturating_add),
        shares,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size class of slabs with 64 objects of 64 bytes, of which `free_objects` are free.
    fn bin(free_objects: u64) -> Bin {
        Bin {
            size: 64,
            regions: 64_000 - free_objects,
            slabs: 1000,
            slab_size: 4096,
        }
    }

    /// Weights of samples, given as holder, class, number of samples and pinned bytes of each.
    fn weights(samples: &[(&'static str, usize, u64, f64)]) -> Weights<&'static str> {
        let mut weights = Weights::new();
        for (holder, class, count, held) in samples {
            for _ in 0..*count {
                add_weight(&mut weights, (*holder, *class), *held).unwrap();
            }
        }
        weights
    }

    fn shares(
        bins: &[Bin],
        samples: &[(&'static str, usize, u64, f64)],
    ) -> PinnedProfile<&'static str> {
        distribute_free_bytes(bins, &weights(samples)).unwrap()
    }

    #[test]
    fn sparse_holder_gets_most_free_bytes() {
        let bins = [bin(62_000), bin(1000)];
        // A dense holder has more samples, but pins next to nothing.
        let samples = [
            ("sparse", 0, 30, 4032.0),
            ("dense", 0, 300, 1.0),
            ("dense", 1, 300, 1.0),
        ];
        let pinned = shares(&bins, &samples);
        assert_eq!(pinned.total, 63_000 * 64);
        assert_eq!(pinned.unknown_bytes(), 0);
        let (sparse, dense) = (pinned.shares["sparse"], pinned.shares["dense"]);
        assert_eq!(sparse.samples, 30);
        assert_eq!(sparse.bytes + dense.bytes, pinned.total);
        // 300 of 30 * 4032 + 300 in the first class, and all of the second.
        let expected = 64_000 + 62_000 * 64 * 300 / 121_260;
        assert!(dense.bytes.abs_diff(expected) <= 1, "{dense:?}");
    }

    #[test]
    fn class_with_few_samples_has_unknown_holder() {
        let bins = [bin(62_000), bin(1000), bin(5)];
        let check = |samples: &[_], unknown: u64| {
            let pinned = shares(&bins, samples);
            assert_eq!(pinned.total, 63_005 * 64);
            assert_eq!(pinned.unknown_bytes(), unknown * 64, "{pinned:?}");
        };
        check(&[], 63_005);
        check(&[("a", 0, 19, 100.0)], 63_005);
        check(&[("a", 0, 20, 100.0)], 1005);
        check(
            &[("a", 0, 10, 100.0), ("b", 0, 10, 100.0), ("b", 1, 40, 5.0)],
            5,
        );
        // One sample that pins nearly everything, beside many that pin nothing.
        check(&[("a", 0, 1, 10_000.0), ("b", 0, 500, 0.1)], 63_005);
        check(&[("a", 0, 500, 0.0)], 63_005);
    }

    #[test]
    fn shares_of_class_sum_to_its_free_bytes() {
        const HOLDERS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
        for free in [1, 7, 999, 61_234] {
            let samples = HOLDERS.map(|holder| (holder, 0, 9, 3.7));
            let pinned = shares(&[bin(free)], &samples);
            assert_eq!(pinned.unknown_bytes(), 0);
            let even = free * 64 / 7;
            let is_even = |share: &PinnedShare| share.bytes.abs_diff(even) <= 1;
            assert!(pinned.shares.values().all(is_even), "{pinned:?}");
        }
    }

    #[test]
    fn objects_per_sample_depends_on_size() {
        assert!((objects_per_sample(64, 64 << 10) - 1024.5).abs() < 0.1);
        assert!((objects_per_sample(64 << 20, 64 << 10) - 1.0).abs() < 1e-9);
        assert!(objects_per_sample(0, 0).is_finite());
    }
}
