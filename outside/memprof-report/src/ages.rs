//! How old memory is. A stack may end, above its thread's start, in a frame that is no code: when its samples
//! were allocated. The allocator keeps samples of one stack and different births apart, so that one dump tells
//! how much of what was allocated when is still alive.

use std::time::Duration;

use crate::alloc_time::{AgeBuckets, AllocTime};
use crate::error::{Error, Result};
use crate::fold::Folded;
use crate::profile::{Profile, SampleType, SampleValues};

/// What is alive of a span of ages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cohort {
    /// The least age, in seconds.
    pub(crate) from: u32,
    /// The least age that is older.
    pub(crate) to: u32,
    /// Bytes alive.
    pub(crate) bytes: i64,
    /// Objects alive.
    pub(crate) objects: i64,
}

/// How many spans of ages a table shows.
pub(crate) const COLUMNS: u32 = 12;

/// What each function holds, by age.
#[derive(Debug)]
pub(crate) struct Cohorts {
    /// The length of a cohort, in seconds.
    length: u32,
    /// By function, then by age: bytes and objects.
    held: Vec<Vec<[i64; 2]>>,
    /// By age: what all hold.
    total: Vec<[i64; 2]>,
}

/// Adds to what is held of that age.
fn add(cohorts: &mut Vec<[i64; 2]>, index: usize, [bytes, objects]: [i64; 2]) {
    if cohorts.len() <= index {
        cohorts.resize(index + 1, [0; 2]);
    }
    cohorts[index][0] += bytes;
    cohorts[index][1] += objects;
}

impl Cohorts {
    /// `columns` spans of equal length, from the youngest to the oldest sample of all.
    pub(crate) fn new(folded: &Folded, ages: AgeBuckets, columns: u32, by_cum: bool) -> Self {
        let births = folded.stacks.iter().flat_map(|stack| &stack.births);
        let oldest = births.map(|(birth, _)| ages.least(*birth)).max();
        let buckets = oldest.unwrap_or(0) / ages.width + 1;
        let length = ages.width.saturating_mul(buckets.div_ceil(columns));
        let mut held = vec![Vec::new(); folded.functions.len()];
        let mut total = Vec::new();
        let index = |birth: AllocTime| (ages.least(birth) / length) as usize;
        for stack in &folded.stacks {
            let mut told: Vec<_> = folded.visible_functions(stack).collect();
            told.sort_unstable();
            told.dedup();
            if !by_cum {
                told = folded.visible_functions(stack).last().into_iter().collect();
            }
            for (birth, held_of) in &stack.births {
                for function in &told {
                    add(&mut held[function.0 as usize], index(*birth), *held_of);
                }
                add(&mut total, index(*birth), *held_of);
            }
        }
        Self {
            length,
            held,
            total,
        }
    }

    /// The length of a cohort, in seconds.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// What a function holds, young to old; where it holds nothing, there is no cohort.
    pub(crate) fn of(&self, function: usize) -> impl Iterator<Item = Cohort> {
        let held = self.held[function].iter().zip(0..);
        held.filter(|(held, _)| **held != [0; 2])
            .map(|(&[bytes, objects], index)| Cohort {
                from: self.length.saturating_mul(index),
                to: self.length.saturating_mul(index + 1),
                bytes,
                objects,
            })
    }

    /// The age that half of a function's bytes have not reached, in seconds.
    pub(crate) fn median(&self, function: usize) -> Option<u32> {
        let total: i64 = self.of(function).map(|cohort| cohort.bytes).sum();
        let mut younger = 0;
        self.of(function)
            .find(|cohort| {
                younger += cohort.bytes;
                2 * younger >= total
            })
            .map(|cohort| cohort.to)
    }

    /// The bytes that a function holds of each age, from the youngest on.
    pub(crate) fn bytes(&self, function: usize) -> Vec<i64> {
        self.held[function]
            .iter()
            .map(|[bytes, _]| *bytes)
            .collect()
    }

    /// The bytes that all hold of each age.
    pub(crate) fn total(&self) -> Vec<i64> {
        self.total.iter().map(|[bytes, _]| *bytes).collect()
    }

    /// A column for each cohort, young to old, each as high as its share of the largest.
    pub(crate) fn sparkline(&self, function: usize, columns: u32) -> String {
        const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let held = &self.held[function];
        let most = held.iter().map(|[bytes, _]| *bytes).max().unwrap_or(0);
        let bar = |index: u32| match held.get(index as usize) {
            Some(&[bytes, _]) if bytes > 0 => {
                HEIGHTS[(7.0 * bytes as f64 / most as f64).round() as usize]
            }
            _ => ' ',
        };
        (0..columns).map(bar).collect()
    }
}

/// Keeps what is older than that; returns the bytes left out because their age is not known.
pub(crate) fn filter_older(profile: &mut Profile, least: Duration) -> Result<i64> {
    let ages = profile.ages.ok_or_else(no_ages_error)?;
    let mut unknown = SampleValues::default();
    profile.samples.retain(|sample| match sample.birth {
        Some(birth) => u64::from(ages.least(birth)) >= least.as_secs(),
        None => {
            unknown += sample.values;
            false
        }
    });
    Ok(unknown[SampleType::InuseSpace])
}

/// For a profile whose samples have no births.
pub(crate) fn no_ages_error() -> Error {
    Error::Usage(
        "its samples have no age: `memprof activate ages=1m` counts it for what is allocated from then on"
            .into(),
    )
}

/// `45s`, `12m`, `3h`, `9d`: rounded down.
pub(crate) fn span(seconds: u32) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
