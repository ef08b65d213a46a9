//! Who holds how much, by the labels of who allocated it.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::confidence::Confidence;
use crate::error::Result;
use crate::input::parse;
use crate::label::{Label, OTHER};
use crate::limits::Limits;
use crate::profile::{Profile, SampleType};
use crate::unsample::unsample;

/// Keeps the samples with a label.
pub(crate) fn filter_by_label(profile: &mut Profile, label: &Label) -> Result<()> {
    let labels = &profile.labels;
    labels.require(&label.key)?;
    profile
        .samples
        .retain(|sample| labels.value(sample.label, &label.key) == label.value);
    Ok(())
}

/// What is held under one value of a label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabelShare {
    pub(crate) value: String,
    pub(crate) held: i64,
    pub(crate) evidence: Confidence,
}

/// Who holds how much, by the values of a label, the largest first.
pub(crate) fn shares(
    profile: &Profile,
    key: &str,
    sample_type: SampleType,
) -> Result<Vec<LabelShare>> {
    profile.labels.require(key)?;
    let mut held: BTreeMap<&str, (i64, Confidence)> = BTreeMap::new();
    for sample in &profile.samples {
        let share = held
            .entry(profile.labels.value(sample.label, key))
            .or_default();
        share.0 += sample.values[sample_type];
        share.1 += Confidence::of(profile, sample, sample_type);
    }
    let shares = held
        .into_iter()
        .map(|(value, (held, evidence))| LabelShare {
            value: value.to_owned(),
            held,
            evidence,
        });
    let mut shares: Vec<_> = shares.filter(|share| share.held != 0).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.held));
    Ok(shares)
}

/// Bytes in use under a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelUsage {
    /// The label's key.
    pub key: String,
    /// Its value, `[none]`, or `[other]` for all that are not told apart.
    pub value: String,
    /// Bytes, corrected for sampling; negative where a base had more.
    pub bytes: i64,
}

/// What a profile holds by its labels, of each key the `most` values with most bytes; all others are one. None
/// where its samples have no labels.
pub fn usage_by_label(
    input: &mut dyn BufRead,
    limits: &Limits,
    most: usize,
) -> Result<Vec<LabelUsage>> {
    let mut profile = parse(input, limits, false)?;
    unsample(&mut profile)?;
    let mut holdings = Vec::new();
    for key in profile.labels.keys() {
        let shares = shares(&profile, key, SampleType::InuseSpace)?;
        let (other, told): (Vec<_>, Vec<_>) = shares
            .into_iter()
            .enumerate()
            .partition(|(at, share)| *at >= most || share.value == OTHER);
        let holding = |value: &str, bytes| LabelUsage {
            key: key.clone(),
            value: value.to_owned(),
            bytes,
        };
        holdings.extend(
            told.iter()
                .map(|(_, share)| holding(&share.value, share.held)),
        );
        if !other.is_empty() {
            let bytes = other.iter().map(|(_, share)| share.held).sum();
            holdings.push(holding(OTHER, bytes));
        }
    }
    Ok(holdings)
}
