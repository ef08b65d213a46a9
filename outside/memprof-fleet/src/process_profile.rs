//! Heap profile of one process at one time, symbolized and summed by stack. An agent takes it, and the
//! tables' rows come from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::time::Instant;

/// Profile of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessProfile {
    pub(crate) context: ProfileContext,
    /// One sample per stack.
    pub(crate) samples: Vec<Sample>,
    pub(crate) stacks: Vec<NamedStack>,
}

/// The profiled process, and circumstances of its dump.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProfileContext {
    /// Time at which the dump was complete.
    pub(crate) time: Instant,
    /// Time at which the process became a host.
    pub(crate) start_time: Instant,
    pub(crate) service: String,
    /// Process key: `HOST/PID.START.ID`, START in clock ticks since boot, ID that of machine and boot; older agents
    /// left it out.
    pub(crate) instance: String,
    /// Machine name.
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Build id of the program's file in hexadecimal; empty if it has none.
    pub(crate) build_id: String,
    /// Trigger of the dump.
    pub(crate) trigger: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Mean bytes between samples.
    pub(crate) sample_interval: i64,
    pub(crate) rss_bytes: Option<i64>,
    /// Milliseconds by which this machine's clock is ahead of the store's. `None` if unknown.
    pub(crate) clock_offset_ms: Option<i64>,
    /// Counts of memprof's sampler. `None` if the allocator sampled. Older agents did not write it.
    #[serde(default)]
    pub(crate) sampler: Option<SamplerCounts>,
}

/// Counts of memprof's sampler since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SamplerCounts {
    pub(crate) samples: i64,
    /// Samples that are in no profile, because its tables were full.
    pub(crate) lost: i64,
    /// Samples whose blocks were given out again, though it saw no free of them.
    pub(crate) unseen_free_samples: i64,
    /// Bytes that the profile shows in use beyond what the allocator holds: they were freed unseen.
    pub(crate) unseen_free_bytes: i64,
    /// Bytes in use that it did not see when they were allocated.
    pub(crate) unseen_allocation_bytes: i64,
    /// Samples whose stacks lack their outermost frames.
    pub(crate) early_end_samples: i64,
}

impl SamplerCounts {
    /// Columns of PROFILES with these counts, in the order of the fields. Files of older agents lack them.
    pub(crate) const COLUMNS: [&str; 6] = [
        "taken_samples",
        "lost_samples",
        "unseen_free_samples",
        "unseen_free_bytes",
        "unseen_allocation_bytes",
        "early_end_samples",
    ];

    /// Returns the counts in the order of [`Self::COLUMNS`].
    pub(crate) fn values(self) -> [i64; Self::COLUMNS.len()] {
        [
            self.samples,
            self.lost,
            self.unseen_free_samples,
            self.unseen_free_bytes,
            self.unseen_allocation_bytes,
            self.early_end_samples,
        ]
    }

    /// Creates the counts from values in the order of [`Self::COLUMNS`].
    fn from_values(values: [i64; Self::COLUMNS.len()]) -> Self {
        let [
            samples,
            lost,
            unseen_free_samples,
            unseen_free_bytes,
            unseen_allocation_bytes,
            early_end_samples,
        ] = values;
        Self {
            samples,
            lost,
            unseen_free_samples,
            unseen_free_bytes,
            unseen_allocation_bytes,
            early_end_samples,
        }
    }

    /// Creates the counts from the values of [`Self::COLUMNS`] in a row. An older agent may have written only the first
    /// two, and the others are 0 then. `None` if one of these two is missing.
    pub(crate) fn from_row(values: [Option<i64>; Self::COLUMNS.len()]) -> Option<Self> {
        let [samples, lost, ..] = values;
        samples.zip(lost)?;
        Some(Self::from_values(
            values.map(|value| value.unwrap_or_default()),
        ))
    }

    /// Returns the sum of each count of two samplers. A sum above the largest number becomes the largest number.
    pub(crate) fn plus(self, other: Self) -> Self {
        let (own, others) = (self.values(), other.values());
        Self::from_values(std::array::from_fn(|index| {
            own[index].saturating_add(others[index])
        }))
    }
}

/// Values of one stack, estimated from its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) stack_id: i64,
    pub(crate) inuse_bytes: i64,
    pub(crate) inuse_objects: i64,
    /// Bytes and objects allocated. `None` if the allocator does not count them.
    pub(crate) alloc: Option<[i64; 2]>,
}

impl Sample {
    /// Returns the sum of two samples of the same stack. The sum has no allocations (`None`) if one of the two has
    /// none.
    pub(crate) fn plus(self, other: Self) -> Self {
        let [inuse_bytes, inuse_objects] = sum_amounts(self.inuse(), other.inuse());
        let alloc = self.alloc.zip(other.alloc);
        Self {
            stack_id: self.stack_id,
            inuse_bytes,
            inuse_objects,
            alloc: alloc.map(|(one, more)| sum_amounts(one, more)),
        }
    }

    /// Returns [bytes, objects] in use.
    fn inuse(self) -> [i64; 2] {
        [self.inuse_bytes, self.inuse_objects]
    }
}

/// Returns the sums of bytes and of objects. A sum above the largest number becomes the largest number: a process can
/// write any numbers into its dump.
fn sum_amounts([bytes, objects]: [i64; 2], [more_bytes, more_objects]: [i64; 2]) -> [i64; 2] {
    [
        bytes.saturating_add(more_bytes),
        objects.saturating_add(more_objects),
    ]
}

/// Stack, identified by the names of its functions, so that it has one id in all builds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedStack {
    pub(crate) stack_id: i64,
    /// Function under which it counts in a table, as in `memprof report`.
    pub(crate) function: String,
    /// Frames, root first.
    pub(crate) frames: Vec<Frame>,
}

/// Function, and the file name of its program or library.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) function: String,
    pub(crate) module: String,
}

/// Returns the id of a stack in every table: the first 8 bytes of a SHA-256 of the functions and modules of its frames.
/// Each text is preceded by its length, so that no two lists of frames hash the same bytes.
pub(crate) fn stack_id(frames: &[Frame]) -> i64 {
    let mut hash = Sha256::new();
    for frame in frames {
        for text in [&frame.function, &frame.module] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
    let digest = hash.finalize();
    i64::from_be_bytes(std::array::from_fn(|index| digest[index]))
}

impl ProcessProfile {
    /// Describes the profile in one line: its number of stacks, and what the sampler missed.
    pub(crate) fn summary(&self) -> String {
        let stacks = match self.samples.len() {
            1 => "1 stack".to_owned(),
            stacks => format!("{stacks} stacks"),
        };
        let counts = self.context.sampler.unwrap_or_default();
        // Bytes and samples are different units; only whether one of them is above 0 matters here.
        let unseen = counts.unseen_free_bytes.max(counts.unseen_free_samples);
        let parts = [
            (
                counts.lost,
                format!("; {} of {} samples were lost", counts.lost, counts.samples),
            ),
            (unseen, "; it shows freed memory as in use".to_owned()),
            (
                counts.unseen_allocation_bytes,
                "; it lacks memory that memprof did not see allocated".to_owned(),
            ),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        parts.fold(stacks, |text, (_, part)| text + &part)
    }

    /// Returns the sum of all samples: [bytes, objects] in use.
    pub(crate) fn sum_inuse(&self) -> [i64; 2] {
        let inuse = self.samples.iter().map(|sample| sample.inuse());
        inuse.fold([0; 2], sum_amounts)
    }

    /// Returns the sum of all samples: [bytes, objects] allocated. `None` if any sample has none.
    pub(crate) fn sum_alloc(&self) -> Option<[i64; 2]> {
        let mut alloc = self.samples.iter().map(|sample| sample.alloc);
        alloc.try_fold([0; 2], |sum, alloc| Some(sum_amounts(sum, alloc?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::tests::profile;

    #[test]
    fn sums_of_largest_samples_are_limited() {
        let largest = Sample {
            inuse_bytes: i64::MAX,
            inuse_objects: 3,
            alloc: Some([1, i64::MAX]),
            ..Sample::default()
        };
        let profile = ProcessProfile {
            samples: vec![largest; 2],
            ..profile()
        };
        assert_eq!(profile.sum_inuse(), [i64::MAX, 6]);
        assert_eq!(profile.sum_alloc(), Some([2, i64::MAX]));
    }
}
