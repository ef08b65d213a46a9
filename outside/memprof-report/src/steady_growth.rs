//! Finds steady growth in one dump: a leak has as many live bytes of every age, a cache fewer the older they are,
//! and memory that a program allocates at its start has one age.

use std::time::Duration;

use crate::ages::no_ages_error;
use crate::alloc_time::{AgeBuckets, AllocTime};
use crate::error::{Error, Result};
use crate::fold::{Folded, FoldedStack};
use crate::symbolized_profile::SymbolizedProfile;

/// Number of age spans that are compared.
const SPAN_COUNT: usize = 4;

/// Stacks that hold memory of every age.
#[derive(Clone, Debug)]
pub struct SteadyStacks {
    /// Time that the ages cover.
    pub span: Duration,
    /// Stacks, unordered.
    pub stacks: Vec<SteadyStack>,
}

/// A stack that holds memory of every age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteadyStack {
    /// Functions, root first.
    pub stack: Vec<String>,
    /// Live bytes over the whole span, if every quarter of it had as many as the one with least.
    pub bytes: i64,
    /// Live bytes of all ages.
    pub inuse: i64,
}

/// Finds the stacks in `folded` that hold memory of every age: the time without the youngest and the oldest age bucket
/// is divided into `SPAN_COUNT` spans, and the stack holds bytes from each of them. The result for a stack is the bytes
/// of the span with least, projected to the whole time.
///
/// # Errors
/// The samples of the profile have no ages, or too few different ones.
pub fn find_steady_growth(named: &SymbolizedProfile, folded: &Folded<'_>) -> Result<SteadyStacks> {
    let ages = named.profile.ages.ok_or_else(no_ages_error)?;
    let mut oldest = 0;
    folded.stacks.for_each(|stack| {
        let alloc_times = stack.alloc_times.iter();
        let indexes = alloc_times.map(|(alloc_time, _)| bucket_index(ages, *alloc_time));
        oldest = indexes.fold(oldest, usize::max);
    });
    // The youngest bucket is not complete yet, and the oldest one contains what was allocated at the start.
    let whole = oldest.saturating_sub(1);
    if whole < SPAN_COUNT {
        let width = ages.width;
        return Err(Error::Usage(format!(
            "its samples span less than {} ages of {width} s: dump again {} s after `activate`",
            SPAN_COUNT + 2,
            (SPAN_COUNT as u32 + 2).saturating_mul(width)
        )));
    }
    let steady_stack = |stack: FoldedStack<'_>| {
        let mut bytes_by_span = [0; SPAN_COUNT];
        for (alloc_time, [bytes, _]) in stack.alloc_times {
            let bucket_index = bucket_index(ages, *alloc_time);
            if (1..=whole).contains(&bucket_index) {
                bytes_by_span[(bucket_index - 1) * SPAN_COUNT / whole] += bytes;
            }
        }
        let lengths = (0..SPAN_COUNT).map(|span| buckets_in_span(span, whole));
        let projected = bytes_by_span
            .iter()
            .zip(lengths)
            .map(|(bytes, span_len)| i128::from(*bytes) * whole as i128 / span_len);
        // The least is at most the sum over all spans, which fits.
        let bytes = i64::try_from(projected.min()?).ok()?;
        if bytes <= 0 {
            return None;
        }
        let functions = stack.functions.iter();
        Some(SteadyStack {
            stack: functions
                .map(|id| folded.functions.get(*id).to_owned())
                .collect(),
            bytes,
            inuse: stack.alloc_times.iter().map(|(_, [bytes, _])| bytes).sum(),
        })
    };
    let mut stacks = Vec::new();
    folded
        .stacks
        .for_each(|stack| stacks.extend(steady_stack(stack)));
    Ok(SteadyStacks {
        span: Duration::from_secs(u64::from(ages.width) * whole as u64),
        stacks,
    })
}

/// Index of the age bucket that contains `alloc_time`: 0 for the newest, which was incomplete when the profile was
/// taken, and larger for older ones.
fn bucket_index(ages: AgeBuckets, alloc_time: AllocTime) -> usize {
    let newest = ages.taken - ages.taken % ages.width;
    (newest
        .saturating_sub(alloc_time.seconds())
        .div_ceil(ages.width)) as usize
}

/// Returns the number of buckets in the span with the index `span`, if `whole` buckets are divided into [`SPAN_COUNT`]
/// spans. Spans differ by one bucket at most.
fn buckets_in_span(span: usize, whole: usize) -> i128 {
    let first = |span: usize| (span * whole).div_ceil(SPAN_COUNT);
    (first(span + 1) - first(span)) as i128
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_lengths_count_all_buckets() {
        for whole in SPAN_COUNT..100 {
            let mut lengths = [0; SPAN_COUNT];
            for bucket_index in 0..whole {
                lengths[bucket_index * SPAN_COUNT / whole] += 1;
            }
            for (span, counted) in lengths.into_iter().enumerate() {
                assert_eq!(buckets_in_span(span, whole), counted, "{span} of {whole}");
            }
        }
    }
}
