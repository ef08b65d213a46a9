//! What keeps growing, told by one dump: of a leak as much is alive of every age, of a cache less the older it
//! is, and what a program loads at its start has one age.

use std::time::Duration;

use crate::ages::no_ages_error;
use crate::alloc_time::{AgeBuckets, AllocTime};
use crate::error::{Error, Result};
use crate::fold::{Folded, SymbolizedProfile};

/// Ages are compared in so many spans.
const SPANS: usize = 4;

/// The stacks that hold memory of every age.
#[derive(Clone, Debug)]
pub struct SteadyStacks {
    /// The time that was looked at.
    pub span: Duration,
    /// In no order.
    pub stacks: Vec<SteadyStack>,
}

/// A stack that holds memory of every age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteadyStack {
    /// Its functions, root first.
    pub stack: Vec<String>,
    /// Bytes that are alive of the whole span, were as much alive of all of it as of the quarter of which least is.
    pub bytes: i64,
    /// Bytes that are alive of all ages.
    pub inuse: i64,
}

/// Looks for what `folded` holds of every age.
///
/// # Errors
/// The samples of the profile have no ages, or too few different ones.
pub fn find_steady_growth(named: &SymbolizedProfile, folded: &Folded) -> Result<SteadyStacks> {
    let ages = named.profile.ages.ok_or_else(no_ages_error)?;
    let births = folded.stacks.iter().flat_map(|stack| &stack.births);
    let oldest = births.map(|(birth, _)| bucket(ages, *birth)).max();
    // The youngest bucket is not full yet, and the oldest one holds what was allocated at the start.
    let whole = oldest.unwrap_or(0).saturating_sub(1);
    if whole < SPANS {
        let width = ages.width;
        return Err(Error::Usage(format!(
            "its samples span less than {} ages of {width} s: dump again {} s after `activate`",
            SPANS + 2,
            (SPANS as u32 + 2).saturating_mul(width)
        )));
    }
    let stacks = folded.stacks.iter().filter_map(|stack| {
        let mut held = [0; SPANS];
        for (birth, [bytes, _]) in &stack.births {
            let bucket = bucket(ages, *birth);
            if (1..=whole).contains(&bucket) {
                held[(bucket - 1) * SPANS / whole] += bytes;
            }
        }
        let lengths = (0..SPANS).map(|span| length(span, whole));
        let of_all = held
            .iter()
            .zip(lengths)
            .map(|(bytes, length)| bytes * whole as i64 / length);
        let bytes = of_all.min().filter(|bytes| *bytes > 0)?;
        let functions = stack.functions.iter();
        Some(SteadyStack {
            stack: functions
                .map(|id| folded.functions.get(*id).to_owned())
                .collect(),
            bytes,
            inuse: stack.births.iter().map(|(_, [bytes, _])| bytes).sum(),
        })
    });
    Ok(SteadyStacks {
        span: Duration::from_secs(u64::from(ages.width) * whole as u64),
        stacks: stacks.collect(),
    })
}

/// Which bucket it is, counted from the one that was not full when the profile was taken.
fn bucket(ages: AgeBuckets, birth: AllocTime) -> usize {
    let newest = ages.taken - ages.taken % ages.width;
    (newest.saturating_sub(birth.0).div_ceil(ages.width)) as usize
}

/// How many of the whole buckets fall into a span.
fn length(span: usize, whole: usize) -> i64 {
    let first = |span: usize| (span * whole).div_ceil(SPANS);
    (first(span + 1) - first(span)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_all_buckets() {
        for whole in SPANS..100 {
            let mut lengths = [0; SPANS];
            for bucket in 0..whole {
                lengths[bucket * SPANS / whole] += 1;
            }
            for (span, counted) in lengths.into_iter().enumerate() {
                assert_eq!(length(span, whole), counted, "{span} of {whole}");
            }
        }
    }
}
