//! Who probably allocated leaked objects of which no sample was taken: the functions that allocated the sampled ones of
//! the same class and size.

use std::collections::{BTreeMap, HashMap};

use crate::leak_group::{LeakGroup, OriginShare, SampledOrigin};

/// Most functions that are named for a group.
const MAX_FUNCTIONS: usize = 3;
/// Standard normal quantile of 95 %, one-sided.
const CONFIDENCE_QUANTILE: f64 = 1.645;

/// Sets the probable origin of each group without a stack, if other groups of its class and size have stacks.
/// `interval` is the least mean of bytes between the samples.
pub(crate) fn set_probable_origins(groups: &mut [LeakGroup], interval: u64) {
    let mut by_kind: HashMap<_, BTreeMap<String, u64>> = HashMap::new();
    for group in groups.iter() {
        if let Some(function) = group.stack.as_ref().and_then(|stack| stack.row_function()) {
            let kind = by_kind
                .entry((group.class.clone(), group.size))
                .or_default();
            *kind.entry(function.to_owned()).or_default() += group.objects;
        }
    }
    for group in groups.iter_mut().filter(|group| group.stack.is_none()) {
        let kind = by_kind.get(&(group.class.clone(), group.size));
        group.origin = kind.map(|samples| {
            SampledOrigin::from_samples(
                samples,
                group.objects,
                sampling_probability(group.size, interval),
            )
        });
    }
}

/// Probability that an allocation of `size` bytes is sampled, `1 - e^(-size / interval)`, if samples are `interval`
/// bytes apart on the average. The usable size is at least the requested one, so the result is at most too high.
fn sampling_probability(size: u64, interval: u64) -> f64 {
    -(-(size as f64) / interval as f64).exp_m1()
}

impl SampledOrigin {
    /// Derives the origin of `unsampled` objects from the samples of each function. Each object was sampled with that
    /// `probability`, if sampling was on when it was allocated. Keeps the [`MAX_FUNCTIONS`] functions with most
    /// samples. The origin counts as probable if the first of them must have allocated more than half of the objects.
    fn from_samples(samples: &BTreeMap<String, u64>, unsampled: u64, probability: f64) -> Self {
        let shares = samples.iter().map(|(function, sampled)| OriginShare {
            function: function.clone(),
            sampled: *sampled,
        });
        let mut functions: Vec<_> = shares.collect();
        functions.sort_by_key(|share| std::cmp::Reverse(share.sampled));
        functions.truncate(MAX_FUNCTIONS);
        let first = functions.first().map_or(0, |share| share.sampled);
        Self {
            functions,
            sampled: samples.values().sum(),
            is_probable: least_unsampled_count(first, probability) > unsampled as f64 / 2.0,
        }
    }
}

/// Least number of objects without a sample that come with `sampled` ones, with 95 % confidence. Each was sampled with
/// `probability`, so the number of samples is binomially distributed, which this approximates by a normal distribution.
fn least_unsampled_count(sampled: u64, probability: f64) -> f64 {
    let sampled = sampled as f64;
    let deviation = (sampled * (1.0 - probability)).sqrt();
    (sampled - CONFIDENCE_QUANTILE * deviation) / probability - sampled
}

#[cfg(test)]
mod tests {
    use memprof_report::NamedStack;

    use super::*;

    fn group(class: Option<&str>, size: u64, function: Option<&str>, objects: u64) -> LeakGroup {
        LeakGroup {
            class: class.map(str::to_owned),
            size,
            stack: function.map(|function| NamedStack {
                functions: vec!["operator new".to_owned(), function.to_owned()],
                row: 1,
            }),
            origin: None,
            objects,
            bytes: size * objects,
            example: 0,
        }
    }

    /// Checks the origin of the last group, as `function: sampled` and whether it is probable.
    fn check(groups: &[LeakGroup], interval: u64, expected: Option<(&str, bool)>) {
        let mut groups = groups.to_vec();
        set_probable_origins(&mut groups, interval);
        let found = groups.last().unwrap().origin.as_ref().map(|origin| {
            let shares = origin.functions.iter();
            let shares = shares.map(|share| format!("{}: {}", share.function, share.sampled));
            let shares: Vec<_> = shares.collect();
            (shares.join(", "), origin.is_probable)
        });
        let expected = expected.map(|(shares, is_probable)| (shares.to_owned(), is_probable));
        assert_eq!(found, expected);
    }

    #[test]
    fn function_is_probable_only_if_its_samples_explain_most_objects() {
        // One of 1,024 objects of 512 B is sampled at 512 KiB.
        let lost = |sampled| group(None, 512, Some("lose"), sampled);
        let rest = |objects| group(None, 512, None, objects);
        let interval = 512 << 10;
        check(
            &[lost(16), rest(16_000)],
            interval,
            Some(("lose: 16", true)),
        );
        check(&[lost(4), rest(400)], interval, Some(("lose: 4", true)));
        // Most of them are older than the samples.
        check(
            &[lost(16), rest(160_000)],
            interval,
            Some(("lose: 16", false)),
        );
        // Too few samples.
        check(&[lost(2), rest(2_000)], interval, Some(("lose: 2", false)));
        // Two functions share them.
        let other = group(None, 512, Some("cache"), 8);
        check(
            &[lost(9), other, rest(17_000)],
            interval,
            Some(("lose: 9, cache: 8", false)),
        );
        // All objects were sampled, so these came by a way that the sampler does not see.
        check(&[lost(1000), rest(10)], 1, Some(("lose: 1000", false)));
    }

    #[test]
    fn objects_of_another_kind_have_no_origin() {
        let lost = group(None, 512, Some("lose"), 1000);
        check(&[lost.clone(), group(None, 528, None, 9)], 1 << 19, None);
        check(&[lost, group(Some("Session"), 512, None, 9)], 1 << 19, None);
        check(&[group(None, 512, None, 9)], 1 << 19, None);
    }
}
