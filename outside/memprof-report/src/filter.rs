//! Selects the stacks of a report.

use regex::Regex;

use crate::error::{Error, Result};
use crate::names::{Names, StringId};
use crate::profile::{Profile, SampleValues};
use crate::stacks::AddressId;

/// Keeps stacks with a function that matches `focus`, and without one that matches `ignore`.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `None` keeps all stacks.
    pub focus: Option<Regex>,
    /// `None` removes no stack.
    pub ignore: Option<Regex>,
}

/// Compiles a regular expression of the command line. Fails with a usage error if `text` is malformed.
pub fn compile_pattern(text: &str) -> Result<Regex> {
    Regex::new(text)
        .map_err(|error| Error::Usage(format!("{text} is not a regular expression: {error}")))
}

impl Filter {
    /// Removes the samples in whose stacks no function's name matches `focus`, and those in which one matches `ignore`.
    /// A pattern that is `None` removes nothing. `depths` has, by stack id, the number of the allocator's frames at the
    /// leaf, which match nothing.
    pub(crate) fn retain_matching_samples(
        &self,
        profile: &mut Profile,
        names: &Names,
        depths: &[u32],
    ) {
        if self.focus.is_none() && self.ignore.is_none() {
            return;
        }
        let focus = match_addresses(self.focus.as_ref(), profile, names);
        let ignore = match_addresses(self.ignore.as_ref(), profile, names);
        let any = |by_address: &[bool], frames: &[AddressId]| {
            frames.iter().any(|id| by_address[id.0 as usize])
        };
        let stacks = &profile.stacks;
        profile.samples.retain(|sample| {
            let frames = &stacks.frames(sample.stack)[depths[sample.stack.0 as usize] as usize..];
            (self.focus.is_none() || any(&focus, frames)) && !any(&ignore, frames)
        });
    }
}

/// Removes the samples of memprof itself: those with a frame in its host library (functions `memprof_host::…`) or in
/// the file of its plugin. The plugin's file is the one that the profile names or, if it names none, any file called
/// `memory_profile.so`. Returns the sum of the removed values.
///
/// `depths` has, by stack id, the number of the allocator's frames at the leaf. These do not count: the plugin may be
/// among them because it walks the stacks.
pub fn drop_memprof_stacks(profile: &mut Profile, names: &Names, depths: &[u32]) -> SampleValues {
    let image = profile.origin.image.as_deref();
    let files: Vec<bool> = profile
        .mappings
        .iter()
        .map(|mapping| match image {
            Some(image) => mapping.path == image,
            None => mapping.file_name() == "memory_profile.so",
        })
        .collect();
    let by_string: Vec<bool> = (0..names.strings.len() as u32)
        .map(|index| names.strings.get(StringId(index)))
        .map(|name| name.trim_start_matches('<').starts_with("memprof_host::"))
        .collect();
    if !files.contains(&true) && !by_string.contains(&true) {
        return SampleValues::default();
    }
    let by_address: Vec<bool> = (0..profile.stacks.addresses().len() as u32)
        .map(|index| {
            let id = AddressId(index);
            let mut frames = names.frames(id).iter();
            profile
                .mapping_of_frame(id)
                .is_some_and(|index| files[index])
                || frames.any(|frame| by_string[frame.function.0 as usize])
        })
        .collect();
    let stacks = &profile.stacks;
    let mut removed = SampleValues::default();
    profile.samples.retain(|sample| {
        let frames = &stacks.frames(sample.stack)[depths[sample.stack.0 as usize] as usize..];
        let is_memprof = frames.iter().any(|id| by_address[id.0 as usize]);
        if is_memprof {
            removed += sample.values;
        }
        !is_memprof
    });
    removed
}

/// Returns, by address id, whether the name of one of the address's functions matches; all false without a pattern.
fn match_addresses(pattern: Option<&Regex>, profile: &Profile, names: &Names) -> Vec<bool> {
    let Some(pattern) = pattern else {
        return vec![false; profile.stacks.addresses().len()];
    };
    let by_string: Vec<bool> = (0..names.strings.len())
        .map(|index| pattern.is_match(names.strings.get(crate::names::StringId(index as u32))))
        .collect();
    (0..profile.stacks.addresses().len())
        .map(|index| {
            let frames = names.frames(AddressId(index as u32));
            frames
                .iter()
                .any(|frame| by_string[frame.function.0 as usize])
        })
        .collect()
}
