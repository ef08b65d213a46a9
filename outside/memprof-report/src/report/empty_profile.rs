//! Profiles without anything to show: a report of one is an error, with the reason.

use crate::options::{Format, Options};
use crate::profile::{Profile, SampleType};

/// Reason for an empty report of a profile in which every sample was freed.
const NOTHING_LEFT: &str = "nothing of what was sampled is in use any more";
/// Reason for an empty report of a profile that counts what was allocated, too.
const ONLY_ALLOCATED: &str = "nothing of what was sampled is in use any more; --sample-type alloc_space shows what was allocated";
/// Reason for an empty report of a profile in which only memprof's own memory was sampled.
pub(super) const ONLY_MEMPROF: &str =
    "nothing of the program's was sampled, only memprof's own memory";

/// Returns why nothing of a profile with samples can be shown. `None` if there is something.
pub(super) fn reason_to_refuse(profile: &Profile, options: &Options) -> Option<&'static str> {
    if !is_all_zero(profile, options.sample_type) {
        return None;
    }
    let has_values = |t: &SampleType| !is_all_zero(profile, *t);
    let mut alloc = SampleType::ALL.into_iter().filter(|t| t.is_alloc());
    match alloc.any(|t| has_values(&t)) && !options.sample_type.is_alloc() {
        // It holds the values of all types.
        true if options.format == Format::Pprof => None,
        true => Some(ONLY_ALLOCATED),
        false => Some(NOTHING_LEFT),
    }
}

/// Returns whether the value of that type is 0 in each sample; true without samples.
pub(super) fn is_all_zero(profile: &Profile, sample_type: SampleType) -> bool {
    let mut samples = profile.samples.iter();
    samples.all(|sample| sample.values[sample_type] == 0)
}
