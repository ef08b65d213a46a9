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

/// Returns the reason why a profile has nothing to report: all samples are 0 in the selected sample type. `None` if a
/// sample is not 0. Also `None` for values in use that are all 0 if allocated values are not and the format is pprof,
/// because a pprof file has the values of all types.
pub(super) fn all_zero_reason(profile: &Profile, options: &Options) -> Option<&'static str> {
    if !is_all_zero(profile, options.sample_type) {
        return None;
    }
    let has_values = |t: &SampleType| !is_all_zero(profile, *t);
    let mut alloc = SampleType::ALL.into_iter().filter(|t| t.is_alloc());
    match alloc.any(|t| has_values(&t)) && !options.sample_type.is_alloc() {
        // A pprof file holds the values of all types.
        true if options.format == Format::Pprof => None,
        true => Some(ONLY_ALLOCATED),
        false => Some(NOTHING_LEFT),
    }
}

/// Returns whether the value of `sample_type` is 0 in each sample; true without samples.
pub(super) fn is_all_zero(profile: &Profile, sample_type: SampleType) -> bool {
    let mut samples = profile.samples.iter();
    samples.all(|sample| sample.values[sample_type] == 0)
}

/// Explains why a profile has no sample: an option left out all of them or, if no option filters samples, nothing was
/// sampled.
pub(super) fn empty_reason(profile: &Profile, options: &Options) -> String {
    if options.filter.focus.is_some() || options.filter.ignore.is_some() {
        return "no stack is left by --focus and --ignore".into();
    }
    if options.label.is_some() {
        return "nothing is left by --label".into();
    }
    if options.older.is_some() {
        return "nothing is left by --older".into();
    }
    let origin = &profile.origin;
    let since = origin
        .sampling_since
        .as_ref()
        .or(origin.active_since.as_ref());
    match (profile.interval, since) {
        (Some(interval), Some(since)) => format!(
            "nothing was sampled since {since}, at 1 sample per {interval} bytes; `memprof ledger` shows where the \
             process's memory is, also what no allocator gave out"
        ),
        (Some(interval), None) => format!(
            "nothing was sampled, at 1 sample per {interval} bytes; profiling may never have been active"
        ),
        (None, _) => "it has no sample".into(),
    }
}
