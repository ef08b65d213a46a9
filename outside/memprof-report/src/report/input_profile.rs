//! The profile of an input, which may hold the dumps of several processes.

use super::Input;
use super::loaded_profile::LoadedProfile;
use super::merged_profile::merge_processes;
use crate::ages::{no_ages_error, retain_older_samples};
use crate::error::Result;
use crate::input::parse_profiles;
use crate::label_shares::filter_by_label;
use crate::options::Options;
use crate::profile::SampleType;
use crate::render::format_amount;
use crate::symbolize::{KnownFrames, Progress, Sources, SymbolBudget};
use crate::unsample::overflow_error;

/// Reads the profile of each process in the input, estimates values and finds symbols, merges the profiles, and filters
/// by age and label. `sources` say by process where its files are searched; the last ones serve all further processes.
/// All processes share one memory budget for symbols. Fails if a profile cannot be read, the totals overflow, or ages
/// are requested and the profile has none.
pub(super) fn read_input(
    input: Input<'_>,
    sources: &[Sources],
    options: &Options,
    progress: Progress<'_>,
) -> Result<LoadedProfile> {
    let profiles = parse_profiles(input.bytes, &options.limits, options.force)?;
    let mut budget = SymbolBudget::new(&profiles);
    let mut known = KnownFrames::default();
    let sources = |index: usize| sources.get(index).or(sources.last());
    let parts = profiles.into_iter().enumerate();
    let parts = parts.map(|(index, part)| {
        let sources = sources(index);
        LoadedProfile::from_dump(part, sources, options, progress, &mut budget, &mut known)
    });
    let mut loaded = merge_processes(parts.collect::<Result<_>>()?);
    let profile = &mut loaded.profile;
    // The totals of each process fit in 64 bits, but those of all together may not.
    profile.totals().ok_or_else(overflow_error)?;
    if options.ages && profile.ages.is_none() {
        return Err(no_ages_error());
    }
    if let Some(min_age) = options.older {
        let unknown = retain_older_samples(profile, min_age)?;
        if unknown != 0 {
            let unknown = format_amount(unknown, SampleType::InuseSpace);
            profile
                .warnings
                .push(format!("{unknown} of unknown age left out"));
        }
    }
    if let Some(label) = &options.label {
        filter_by_label(profile, label)?;
    }
    Ok(loaded)
}
