//! Memory by label value: shares and usage.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::confidence::Confidence;
use crate::error::Result;
use crate::input::parse_profile;
use crate::label::{Label, OTHER};
use crate::limits::Limits;
use crate::profile::{Profile, SampleType};
use crate::unsample::unsample;

/// Removes the samples that do not have `label`, a key with a value. Fails if the profile has no labels with this key.
pub(crate) fn filter_by_label(profile: &mut Profile, label: &Label) -> Result<()> {
    let labels = &profile.labels;
    labels.require_key(&label.key, profile.value_types.is_none())?;
    profile
        .samples
        .retain(|sample| labels.matches(sample.label, label));
    Ok(())
}

/// Part of the memory under one value of a label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabelShare {
    pub(crate) value: String,
    pub(crate) amount: i64,
    pub(crate) confidence: Confidence,
}

/// Returns the amount of `sample_type` under each value of the label `key`, in its unit: the largest first, without
/// those of 0. Samples without the label are one share. Fails if the profile has no such key.
pub(crate) fn shares_by_label(
    profile: &Profile,
    key: &str,
    sample_type: SampleType,
) -> Result<Vec<LabelShare>> {
    let is_dump = profile.value_types.is_none();
    profile.labels.require_key(key, is_dump)?;
    let mut amount: BTreeMap<Cow<'_, str>, (i64, Confidence)> = BTreeMap::new();
    for sample in &profile.samples {
        let share = amount
            .entry(profile.labels.value(sample.label, key))
            .or_default();
        share.0 += sample.values[sample_type];
        share.1 += Confidence::new(profile, sample, sample_type);
    }
    let shares = amount
        .into_iter()
        .map(|(value, (amount, confidence))| LabelShare {
            value: value.into_owned(),
            amount,
            confidence,
        });
    let mut shares: Vec<_> = shares.filter(|share| share.amount != 0).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.amount.unsigned_abs()));
    Ok(shares)
}

/// Bytes in use under one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelUsage {
    /// Key of the label.
    pub key: String,
    /// Value, `[none]`, or `[other]` for all values that are not listed.
    pub value: String,
    /// Bytes, corrected for sampling; negative if a base had more.
    pub bytes: i64,
}

/// Reads a profile, and returns its bytes in use by label: for each key the `max` values with most bytes, and one entry
/// `[other]` for the rest. Empty if the samples have no labels.
///
/// # Errors
/// The profile cannot be read or exceeds `limits`, or its sum overflows.
pub fn usage_by_label(
    input: &mut dyn BufRead,
    limits: &Limits,
    max: usize,
) -> Result<Vec<LabelUsage>> {
    let mut profile = parse_profile(input, limits, false)?;
    unsample(&mut profile)?;
    let mut usages = Vec::new();
    for key in profile.labels.keys() {
        let shares = shares_by_label(&profile, key, SampleType::InuseSpace)?;
        let (other, listed): (Vec<_>, Vec<_>) = shares
            .into_iter()
            .enumerate()
            .partition(|(index, share)| *index >= max || share.value == OTHER);
        let usage = |value: &str, bytes| LabelUsage {
            key: key.clone(),
            value: value.to_owned(),
            bytes,
        };
        usages.extend(
            listed
                .iter()
                .map(|(_, share)| usage(&share.value, share.amount)),
        );
        if !other.is_empty() {
            let bytes = other.iter().map(|(_, share)| share.amount).sum();
            usages.push(usage(OTHER, bytes));
        }
    }
    Ok(usages)
}
