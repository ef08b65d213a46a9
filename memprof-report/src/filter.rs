//! Which stacks a report is about.

use regex::Regex;

use crate::error::{Error, Result};
use crate::names::Names;
use crate::profile::Profile;
use crate::stacks::AddressId;

/// Keeps stacks with a function that matches `focus`, and without one that matches `ignore`.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// All stacks, when there is none.
    pub focus: Option<Regex>,
    /// No stack, when there is none.
    pub ignore: Option<Regex>,
}

/// Compiles a regular expression of the command line.
pub fn pattern(text: &str) -> Result<Regex> {
    Regex::new(text)
        .map_err(|error| Error::Usage(format!("{text} is no regular expression: {error}")))
}

impl Filter {
    /// Removes the samples that are not asked for. The first `depths[stack]` frames, the allocator's, match nothing.
    pub(crate) fn apply(&self, profile: &mut Profile, names: &Names, depths: &[u32]) {
        if self.focus.is_none() && self.ignore.is_none() {
            return;
        }
        let focus = matches(self.focus.as_ref(), profile, names);
        let ignore = matches(self.ignore.as_ref(), profile, names);
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

/// By address.
fn matches(pattern: Option<&Regex>, profile: &Profile, names: &Names) -> Vec<bool> {
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
