//! Ages of memory. A stack may end, above its thread's start, in a pseudo frame with the allocation time of its
//! samples. The allocator keeps samples of one stack with different allocation times apart, so one dump shows how
//! much memory of every age is still alive.

use std::time::Duration;

use crate::alloc_time::{AgeBuckets, AllocTime};
use crate::error::{Error, Result};
use crate::fold::Folded;
use crate::profile::{Profile, SampleType, SampleValues};

/// Live memory of a span of ages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cohort {
    /// Least age, in seconds.
    pub(crate) from: u32,
    /// Age limit, in seconds: all samples are younger.
    pub(crate) to: u32,
    /// Live bytes.
    pub(crate) bytes: i64,
    /// Live objects.
    pub(crate) objects: i64,
}

/// Most age spans in a table.
pub(crate) const MAX_COLUMNS: u32 = 12;

/// Live memory of each function, by age.
#[derive(Debug)]
pub(crate) struct Cohorts {
    /// Length of a cohort.
    cohort_seconds: u32,
    /// By function, then by age: bytes and objects.
    held: Vec<Vec<[i64; 2]>>,
    /// By age: bytes and objects of all functions.
    total: Vec<[i64; 2]>,
}

/// Adds bytes and objects to the cohort at `index`, after appending empty cohorts up to it.
fn add_to_cohort(cohorts: &mut Vec<[i64; 2]>, index: usize, [bytes, objects]: [i64; 2]) {
    if cohorts.len() <= index {
        cohorts.resize(index + 1, [0; 2]);
    }
    cohorts[index][0] += bytes;
    cohorts[index][1] += objects;
}

impl Cohorts {
    /// Divides the ages from 0 to that of the oldest sample into up to `columns` spans of equal length, called cohorts,
    /// and adds up the memory in use of each function by cohort. With `by_cum`, a stack counts for all of its visible
    /// functions, else only for the one nearest to the leaf. Memory of unknown age is in no cohort.
    pub(crate) fn new(folded: &Folded<'_>, ages: AgeBuckets, columns: u32, by_cum: bool) -> Self {
        let mut oldest = 0;
        folded.stacks.for_each(|stack| {
            let alloc_times = stack.alloc_times.iter();
            let min_ages = alloc_times.map(|(alloc_time, _)| ages.min_age(*alloc_time));
            oldest = min_ages.fold(oldest, u32::max);
        });
        let buckets = oldest / ages.width + 1;
        let cohort_seconds = ages.width.saturating_mul(buckets.div_ceil(columns));
        let mut held = vec![Vec::new(); folded.functions.len()];
        let mut total = Vec::new();
        let index = |alloc_time: AllocTime| (ages.min_age(alloc_time) / cohort_seconds) as usize;
        folded.stacks.for_each(|stack| {
            let mut visible: Vec<_> = folded.visible_functions(stack).collect();
            visible.sort_unstable();
            visible.dedup();
            if !by_cum {
                visible = folded.visible_functions(stack).last().into_iter().collect();
            }
            for (alloc_time, amounts) in stack.alloc_times {
                for function in &visible {
                    add_to_cohort(&mut held[function.0 as usize], index(*alloc_time), *amounts);
                }
                add_to_cohort(&mut total, index(*alloc_time), *amounts);
            }
        });
        Self {
            cohort_seconds,
            held,
            total,
        }
    }

    /// Length of each cohort, a span of ages, in seconds: a multiple of the length of the profile's age buckets.
    pub(crate) fn cohort_seconds(&self) -> u32 {
        self.cohort_seconds
    }

    /// Iterates over the cohorts, spans of ages, in which a function has memory: young to old. `function` is the
    /// function's index in `Folded::functions`.
    pub(crate) fn function_cohorts(&self, function: usize) -> impl Iterator<Item = Cohort> {
        let held = self.held[function].iter().zip(0..);
        held.filter(|(held, _)| **held != [0; 2])
            .map(|(&[bytes, objects], index)| Cohort {
                from: self.cohort_seconds.saturating_mul(index),
                to: self.cohort_seconds.saturating_mul(index + 1),
                bytes,
                objects,
            })
    }

    /// Upper age limit, in seconds, of the cohort that contains the median of a function's bytes by age. `None` if none
    /// of its memory has a known age.
    pub(crate) fn median_age(&self, function: usize) -> Option<u32> {
        let total: i64 = self
            .function_cohorts(function)
            .map(|cohort| cohort.bytes)
            .sum();
        let mut younger = 0;
        self.function_cohorts(function)
            .find(|cohort| {
                younger += cohort.bytes;
                younger >= total - younger
            })
            .map(|cohort| cohort.to)
    }

    /// Bytes of a function by cohort, a span of ages: from the youngest cohort to the last in which the function has
    /// memory, with 0 for empty cohorts in between.
    pub(crate) fn bytes_by_age(&self, function: usize) -> Vec<i64> {
        self.held[function]
            .iter()
            .map(|[bytes, _]| *bytes)
            .collect()
    }

    /// Bytes of all functions together by cohort, a span of ages: from the youngest cohort to the last that has memory,
    /// with 0 for empty cohorts in between.
    pub(crate) fn total_bytes_by_age(&self) -> Vec<i64> {
        self.total.iter().map(|[bytes, _]| *bytes).collect()
    }

    /// Draws the bytes of a function by age as text of `columns` characters, young to old. A cohort with memory is a
    /// bar, whose height is relative to the function's largest cohort; one without is a blank.
    pub(crate) fn sparkline(&self, function: usize, columns: u32) -> String {
        const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let held = &self.held[function];
        let max = held.iter().map(|[bytes, _]| *bytes).max().unwrap_or(0);
        let bar = |index: u32| match held.get(index as usize) {
            Some(&[bytes, _]) if bytes > 0 => {
                HEIGHTS[(7.0 * bytes as f64 / max as f64).round() as usize]
            }
            _ => ' ',
        };
        (0..columns).map(bar).collect()
    }
}

/// Removes the samples that are younger than `min_age`, and those of unknown age. Returns the bytes in use of unknown
/// age. Fails if the profile has no ages.
pub(crate) fn retain_older_samples(profile: &mut Profile, min_age: Duration) -> Result<i64> {
    let ages = profile.ages.ok_or_else(no_ages_error)?;
    let mut unknown = SampleValues::default();
    profile.samples.retain(|sample| match sample.alloc_time {
        Some(alloc_time) => u64::from(ages.min_age(alloc_time)) >= min_age.as_secs(),
        None => {
            unknown += sample.values;
            false
        }
    });
    Ok(unknown[SampleType::InuseSpace])
}

/// Error for a profile whose samples have no allocation times.
pub(crate) fn no_ages_error() -> Error {
    Error::Usage(
        "its samples have no age: `memprof activate ages=1m` counts it for what is allocated from then on"
            .into(),
    )
}

/// Formats seconds as `45s`, `12m`, `3h` or `9d`, rounded down. A larger unit is used only if it counts two at least:
/// 119 seconds are `119s`, 120 are `2m`.
pub(crate) fn format_span(seconds: u32) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
