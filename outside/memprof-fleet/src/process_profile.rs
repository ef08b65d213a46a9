//! A heap profile of one process at one time, named and summed by stack: what an agent takes, and the rows
//! of the tables come from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::time::Instant;

/// What was dumped, and what it held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessProfile {
    pub(crate) context: ProfileContext,
    /// One sample for each stack and its values.
    pub(crate) samples: Vec<Sample>,
    pub(crate) stacks: Vec<Stack>,
}

/// The process, and how and when it was dumped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProfileContext {
    /// When the dump was there.
    pub(crate) time: Instant,
    /// When the process became a host.
    pub(crate) start_time: Instant,
    pub(crate) service: String,
    /// The process as no other one is called: `HOST/PID.START`, the start in ticks since the machine's.
    pub(crate) instance: String,
    /// The machine's name.
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// That of the program's file in hexadecimal; empty where it has none.
    pub(crate) build_id: String,
    /// Why it was dumped.
    pub(crate) trigger: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Mean bytes between samples.
    pub(crate) sample_interval: i64,
    pub(crate) rss_bytes: Option<i64>,
    /// How far this machine's clock is ahead of the store's.
    pub(crate) clock_offset_ms: Option<i64>,
    /// `None` where the allocator sampled. Older agents did not write it.
    #[serde(default)]
    pub(crate) sampler: Option<SamplerCounts>,
}

/// The samples that memprof's sampler took since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SamplerCounts {
    pub(crate) samples: i64,
    /// How many of them are in no profile, because its tables were full.
    pub(crate) lost: i64,
}

impl SamplerCounts {
    /// Both counts, if they are there.
    pub(crate) fn new(samples: Option<i64>, lost: Option<i64>) -> Option<Self> {
        let (samples, lost) = samples.zip(lost)?;
        Some(Self { samples, lost })
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            samples: self.samples.saturating_add(other.samples),
            lost: self.lost.saturating_add(other.lost),
        }
    }
}

/// What one stack holds, unsampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) stack_id: i64,
    pub(crate) inuse_bytes: i64,
    pub(crate) inuse_objects: i64,
    /// Bytes and objects, where the allocator counts them.
    pub(crate) alloc: Option<[i64; 2]>,
}

impl Sample {
    /// Both of one stack.
    pub(crate) fn plus(self, other: Self) -> Self {
        let sum = |[bytes, objects]: [i64; 2], [more, of]: [i64; 2]| {
            [bytes.saturating_add(more), objects.saturating_add(of)]
        };
        let inuse = [self.inuse_bytes, self.inuse_objects];
        let [inuse_bytes, inuse_objects] = sum(inuse, [other.inuse_bytes, other.inuse_objects]);
        Self {
            stack_id: self.stack_id,
            inuse_bytes,
            inuse_objects,
            alloc: self
                .alloc
                .zip(other.alloc)
                .map(|(one, more)| sum(one, more)),
        }
    }
}

/// A stack by its names, so that those of two builds are the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stack {
    pub(crate) stack_id: i64,
    /// The row of `memprof report` in which it counts.
    pub(crate) function: String,
    /// Root first.
    pub(crate) frames: Vec<Frame>,
}

/// A function, and the file name of its program or library.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) function: String,
    pub(crate) module: String,
}

/// What a stack is called in every table: a hash of its names.
pub(crate) fn stack_id(frames: &[Frame]) -> i64 {
    let mut hash = Sha256::new();
    for frame in frames {
        for text in [&frame.function, &frame.module] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
    let digest = hash.finalize();
    i64::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

impl ProcessProfile {
    /// How many stacks there are, and how many samples are missing.
    pub(crate) fn extent(&self) -> String {
        let stacks = match self.samples.len() {
            1 => "1 stack".to_owned(),
            stacks => format!("{stacks} stacks"),
        };
        let counts = self.context.sampler.unwrap_or_default();
        match counts.lost {
            0 => stacks,
            lost => format!("{stacks}; {lost} of {} samples were lost", counts.samples),
        }
    }

    /// The sum of all samples: bytes and objects in use.
    pub(crate) fn inuse(&self) -> [i64; 2] {
        self.samples
            .iter()
            .fold([0; 2], |[bytes, objects], sample| {
                [bytes + sample.inuse_bytes, objects + sample.inuse_objects]
            })
    }

    /// Of bytes and objects allocated; none where any sample lacks it.
    pub(crate) fn alloc(&self) -> Option<[i64; 2]> {
        self.samples
            .iter()
            .try_fold([0; 2], |[bytes, objects], sample| {
                let [more, of] = sample.alloc?;
                Some([bytes + more, objects + of])
            })
    }
}
