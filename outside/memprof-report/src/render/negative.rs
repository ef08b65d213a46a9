//! Negative values, which profiles of differences have: a format that shows sizes cannot hold them.

use std::collections::HashMap;

use super::format_amount;
use crate::fold::Folded;
use crate::options::{Format, Options};
use crate::plural::pluralize;
use crate::profile::{Profile, SampleType, SampleValues};
use crate::stacks::StackId;
use crate::symbolized_profile::SymbolizedProfile;

/// Returns a note on the negative values that the output format cannot show, with their sum. Collapsed stacks contain
/// them, but the note says that most flamegraph tools skip such lines. `None` if there are no negative values, or the
/// format shows them, as collapsed stacks do with a base.
pub(crate) fn negative_values_note(
    profile: &SymbolizedProfile,
    base: Option<&SymbolizedProfile>,
    options: &Options,
) -> Option<String> {
    let sample_type = options.sample_type;
    let profiles = [Some(profile), base].into_iter().flatten();
    let values = profiles.flat_map(|named| &named.profile.samples);
    let values = values.flat_map(|sample| sample.values.0);
    if values.into_iter().all(|value| value >= 0) {
        return None;
    }
    match options.format {
        Format::Text | Format::Tree | Format::Peek | Format::Dot | Format::Svg => None,
        Format::Pprof | Format::Json => None,
        Format::Collapsed => {
            let (stacks, sum) = count_negative_stacks(profile, None, options);
            let sum = (base.is_none() && stacks > 0).then(|| format_amount(sum, sample_type))?;
            Some(format!(
                "{sum} in {} are negative: most flamegraph tools skip such lines",
                pluralize(stacks, "stack")
            ))
        }
        Format::Flamegraph | Format::Html | Format::View => {
            let (stacks, sum) = count_negative_stacks(profile, base, options);
            let sum = (stacks > 0).then(|| format_amount(sum, sample_type))?;
            Some(format!(
                "{sum} in {} are negative and have no box; --format text, tree and dot show them",
                pluralize(stacks, "stack")
            ))
        }
        Format::Jeprof => {
            let samples = net_samples(&profile.profile);
            let sums = SampleType::ALL.map(|sample_type| {
                let values = samples.iter().map(|(_, values)| values[sample_type].min(0));
                (values.fold(0, i64::saturating_add), sample_type)
            });
            let sums = sums.into_iter().filter(|(sum, _)| *sum != 0);
            let sums: Vec<_> = sums
                .map(|(sum, t)| format!("{} of {}", format_amount(sum, t), t.name()))
                .collect();
            (!sums.is_empty()).then(|| {
                format!(
                    "{} left out: jeprof's file cannot hold negative values, --format pprof can",
                    sums.join(", ")
                )
            })
        }
    }
}

/// Returns the stack and the values of each sample. If any value is negative, as in a difference of two profiles, the
/// samples of one stack are added up first: a gain and a loss of the stack become one value.
pub(super) fn net_samples(profile: &Profile) -> Vec<(StackId, SampleValues)> {
    let samples = profile.samples.iter();
    let samples = samples.map(|sample| (sample.stack, sample.values));
    let mut net: Vec<(StackId, SampleValues)> = Vec::new();
    if samples
        .clone()
        .flat_map(|(_, values)| values.0)
        .all(|value| value >= 0)
    {
        net.extend(samples);
        return net;
    }
    let mut by_stack: HashMap<StackId, usize> = HashMap::new();
    for (stack, values) in samples {
        let index = *by_stack.entry(stack).or_insert(net.len());
        match net.get_mut(index) {
            Some((_, sum)) => *sum = sum.saturating_add(values),
            None => net.push((stack, values)),
        }
    }
    net
}

/// Returns the number of folded stacks with a negative value, and the sum of these values. With a base, the negative
/// value of the base is subtracted from that of the profile, and a stack whose difference is 0 does not count.
fn count_negative_stacks(
    profile: &SymbolizedProfile,
    base: Option<&SymbolizedProfile>,
    options: &Options,
) -> (u64, i64) {
    let folded = Folded::new(
        profile,
        base,
        options.sample_type,
        options.granularity,
        &options.origin_rules,
    );
    let negative: Vec<i64> = folded
        .stacks
        .values()
        .map(|pair| pair.new.min(0).saturating_sub(pair.base.min(0)))
        .filter(|value| *value != 0)
        .collect();
    let sum = negative.iter().copied().fold(0, i64::saturating_add);
    (negative.len() as u64, sum)
}
