//! A profile that was read, before its places without a symbol have names.

use super::Input;
use crate::ages::{no_ages_error, retain_older};
use crate::allocator_frames::allocator_depths;
use crate::error::{Error, Result};
use crate::input::parse;
use crate::label_shares::filter_by_label;
use crate::managed::StackFrames;
use crate::managed_frames::{name_frames, select_program_frames};
use crate::module_names::ModuleNames;
use crate::names::Names;
use crate::options::Options;
use crate::profile::{Profile, SampleType};
use crate::render::format_amount;
use crate::symbolize::{Progress, Sources, find_symbols, moved_text, name_by_offset};
use crate::symbolized_profile::SymbolizedProfile;
use crate::unsample::unsample;

/// A profile with estimated values, in which places without a symbol have no name yet.
pub(super) struct LoadedProfile {
    pub(super) profile: Profile,
    pub(super) names: Names,
    /// Sample type under which the selected values are.
    pub(super) sample_type: SampleType,
}

impl LoadedProfile {
    /// Parses a profile, selects the sample type, undoes the sampling, filters by age and label, and finds symbols.
    /// Without `sources`, the names are those that the file has.
    pub(super) fn new(
        input: Input<'_>,
        sources: Option<&Sources>,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let mut profile = parse(input.bytes, &options.limits, options.force)?;
        let sample_type = match profile.samples.is_empty() {
            // Without samples, the report is empty whatever types the profile has.
            true => options.sample_type,
            false => profile.select_type(options.type_name())?,
        };
        unsample(&mut profile)?;
        if options.ages && profile.ages.is_none() {
            return Err(no_ages_error());
        }
        if let Some(min_age) = options.older {
            let unknown = retain_older(&mut profile, min_age)?;
            if unknown != 0 {
                let unknown = format_amount(unknown, SampleType::InuseSpace);
                profile
                    .warnings
                    .push(format!("{unknown} of unknown age left out"));
            }
        }
        if let Some(label) = &options.label {
            filter_by_label(&mut profile, label)?;
        }
        let mut names = match sources {
            Some(sources) => find_symbols(&mut profile, sources, progress)?,
            None => {
                moved_text::restore_mappings(&mut profile, None);
                profile.names.take().unwrap_or_default()
            }
        };
        name_frames(&mut profile, &mut names, options.shown_frames());
        Ok(Self {
            profile,
            names,
            sample_type,
        })
    }

    /// Names the places without a symbol, and filters by function. In stacks of an interpreted program, keeps the
    /// frames that the options show.
    pub(super) fn into_symbolized(
        self,
        modules: &ModuleNames,
        options: &Options,
    ) -> SymbolizedProfile {
        let Self {
            mut profile,
            mut names,
            ..
        } = self;
        name_by_offset(&mut profile, &mut names, modules);
        profile.stacks.drop_index();
        let depths = allocator_depths(&profile, &names);
        let mut named = SymbolizedProfile {
            profile,
            names,
            depths,
        };
        if named.names.has_managed() && options.shown_frames() == StackFrames::Program {
            select_program_frames(&mut named, &options.origin_rules);
        }
        let SymbolizedProfile {
            profile,
            names,
            depths,
        } = &mut named;
        options.filter.apply(profile, names, depths);
        named
    }
}

/// Fails if a profile and its base count the selected type in different units.
pub(super) fn check_units(profile: &LoadedProfile, base: &LoadedProfile) -> Result<()> {
    let unit = |loaded: &LoadedProfile| loaded.profile.value_type(loaded.sample_type).unit;
    let (new, old) = (unit(profile), unit(base));
    if new == old {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "it counts {} in {:?}, the base in {:?}",
        profile.profile.value_type(profile.sample_type).name,
        new.name(),
        old.name()
    )))
}
