//! Who holds how much, by the labels of who allocated it.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::evidence::Evidence;
use crate::label::Label;
use crate::profile::{Profile, SampleType};

/// Keeps the samples with a label.
pub(crate) fn keep_label(profile: &mut Profile, label: &Label) -> Result<()> {
    let labels = &profile.labels;
    labels.require(&label.key)?;
    profile
        .samples
        .retain(|sample| labels.value(sample.label, &label.key) == label.value);
    Ok(())
}

/// What is held under one value of a label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) value: String,
    pub(crate) held: i64,
    pub(crate) evidence: Evidence,
}

/// Who holds how much, by the values of a label, the largest first.
pub(crate) fn shares(profile: &Profile, key: &str, sample_type: SampleType) -> Result<Vec<Share>> {
    profile.labels.require(key)?;
    let mut held: BTreeMap<&str, (i64, Evidence)> = BTreeMap::new();
    for sample in &profile.samples {
        let share = held
            .entry(profile.labels.value(sample.label, key))
            .or_default();
        share.0 += sample.values[sample_type];
        share.1 += Evidence::of(profile, sample, sample_type);
    }
    let shares = held.into_iter().map(|(value, (held, evidence))| Share {
        value: value.to_owned(),
        held,
        evidence,
    });
    let mut shares: Vec<_> = shares.filter(|share| share.held != 0).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.held));
    Ok(shares)
}
