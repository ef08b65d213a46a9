//! A profile that was read, before its places without a symbol have names.

use crate::allocator_frames::allocator_depths;
use crate::error::{Error, Result};
use crate::managed::StackFrames;
use crate::managed_frames::{name_managed_frames, select_program_frames};
use crate::module_names::ModuleNames;
use crate::names::Names;
use crate::options::Options;
use crate::profile::{Profile, SampleType};
use crate::symbolize::{
    KnownFrames, Progress, Sources, SymbolBudget, find_symbols, moved_text,
    name_addresses_by_offset,
};
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
    /// Selects the sample type of a process's profile, undoes the sampling, and finds symbols within the `budget`.
    /// `known` stores the frames of files that several processes of the report have mapped.
    pub(super) fn from_dump(
        mut profile: Profile,
        sources: Option<&Sources>,
        options: &Options,
        progress: Progress<'_>,
        budget: &mut SymbolBudget,
        known: &mut KnownFrames,
    ) -> Result<Self> {
        let sample_type = match profile.samples.is_empty() {
            // Without samples, the report is empty whatever types the profile has.
            true => options.sample_type,
            false => profile.select_type(options.type_name())?,
        };
        // All stacks were read; symbols need the memory.
        profile.stacks.drop_index();
        unsample(&mut profile)?;
        let mut names = match sources {
            Some(sources) => find_symbols(&mut profile, sources, progress, budget, known)?,
            None => {
                moved_text::restore_mappings(&mut profile, None);
                profile.names.take().unwrap_or_default()
            }
        };
        name_managed_frames(&mut profile, &mut names, options.shown_frames());
        Ok(Self {
            profile,
            names,
            sample_type,
        })
    }

    /// Names the addresses without a symbol by their module and offset, selects which frames of interpreted programs
    /// are shown, and filters the samples by function. `modules` has the names of the modules in this profile and in
    /// its base.
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
        name_addresses_by_offset(&mut profile, &mut names, modules);
        profile.stacks.drop_index();
        let depths = allocator_depths(&profile, &names);
        let mut named = SymbolizedProfile {
            profile,
            names,
            depths,
        };
        if named.names.has_managed_words() && options.shown_frames() == StackFrames::Program {
            select_program_frames(&mut named, &options.origin_rules);
        }
        let SymbolizedProfile {
            profile,
            names,
            depths,
        } = &mut named;
        options
            .filter
            .retain_matching_samples(profile, names, depths);
        named
    }
}

/// Checks that a profile and its base count the selected sample type in the same unit, and fails otherwise.
pub(super) fn check_same_unit(profile: &LoadedProfile, base: &LoadedProfile) -> Result<()> {
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
