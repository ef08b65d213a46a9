//! Symbolizes stacks of addresses that were read from a process, without a profile.

use crate::allocator_frames::{allocator_depths, is_allocator_function};
use crate::code_origin::{CodeOrigin, CodeOrigins, OriginRules};
use crate::error::Result;
use crate::managed::is_managed_word;
use crate::names::{Frame, Names};
use crate::profile::{Address, Mapping, Profile};
use crate::pseudo_frames::PseudoFrame;
use crate::symbolize::{Sources, symbolize};
use crate::symbolized_profile::SymbolizedProfile;

/// Functions of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedStack {
    /// Functions, leaf first, without those of the allocator.
    pub functions: Vec<String>,
    /// Index of the function to which a table attributes the stack: the leaf-most one of the highest code origin.
    pub row: usize,
}

impl NamedStack {
    /// Function to which a table attributes the stack. `None` if the stack is empty.
    pub fn row_function(&self) -> Option<&str> {
        self.functions.get(self.row).map(String::as_str)
    }
}

/// Returns the functions of each stack, leaf first. Omits those of the allocator, and of interpreted programs, whose
/// names only a dump has. A stack is a list of return addresses, leaf first; `mappings` are those of its process,
/// ascending.
///
/// # Errors
/// Only binaries with another build id exist, and `sources` does not force their use.
pub fn symbolize_stacks(
    stacks: &[Vec<u64>],
    mappings: Vec<Mapping>,
    sources: &Sources,
) -> Result<Vec<NamedStack>> {
    let mut profile = Profile {
        mappings,
        ..Profile::default()
    };
    let interned = stacks.iter().map(|stack| {
        for frame in stack.iter().filter(|frame| {
            PseudoFrame::from_stack_word(**frame).is_none() && !is_managed_word(**frame)
        }) {
            let address = profile.stacks.intern_address(Address(*frame));
            profile.stacks.push_frame(address);
        }
        profile.stacks.finish_stack()
    });
    let interned: Vec<_> = interned.collect();
    let names = symbolize(&mut profile, sources, &|_, _| {})?;
    let depths = allocator_depths(&profile, &names);
    let symbolized = SymbolizedProfile {
        profile,
        names,
        depths,
    };
    let origins = CodeOrigins::new(&symbolized, &OriginRules::default());
    let named = interned.into_iter().map(|stack| {
        let addresses = symbolized.program_frames(stack).iter();
        let frames = addresses.flat_map(|id| {
            symbolized
                .names
                .frames(*id)
                .iter()
                .zip(origins.origins(*id))
        });
        to_named_stack(frames, &symbolized.names)
    });
    Ok(named.collect())
}

/// Converts frames, leaf first and each with its code origin, to the names of their functions, and selects the function
/// to which a table attributes the stack: the leaf-most one of the highest origin. Leaves out allocator functions that
/// were inlined at the leaf, but never the outermost frame.
fn to_named_stack<'a>(
    frames: impl Iterator<Item = (&'a Frame, CodeOrigin)>,
    names: &Names,
) -> NamedStack {
    let frames = frames.map(|(frame, origin)| (names.strings.get(frame.function), origin));
    let frames: Vec<_> = frames.collect();
    let leading = frames
        .iter()
        .take_while(|(function, _)| is_allocator_function(function))
        .count();
    let kept = &frames[leading.min(frames.len().saturating_sub(1))..];
    // From the root, because `max_by_key` returns the last of equal frames.
    let row = (0..kept.len()).rev().max_by_key(|index| kept[*index].1);
    NamedStack {
        functions: kept.iter().map(|(name, _)| (*name).to_owned()).collect(),
        row: row.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pseudo_frames_are_dropped_and_unknown_functions_are_offsets() {
        let mapping = Mapping {
            start: Address(0x40_1000),
            end: Address(0x40_2000),
            offset: 0x1000,
            executable: true,
            path: "/no/such/shop".to_owned(),
            build_id: None,
        };
        let alloc_time = 0x4d_5002 << 40 | 1;
        let stacks = [
            vec![0x40_1137, 0x40_1153, alloc_time],
            vec![],
            vec![0x40_1153],
        ];
        let named = symbolize_stacks(&stacks, vec![mapping], &Sources::default()).unwrap();
        assert_eq!(named[1].row_function(), None);
        let functions: Vec<_> = named.into_iter().map(|stack| stack.functions).collect();
        assert_eq!(
            functions,
            [
                vec!["shop+0x1136", "shop+0x1152"],
                vec![],
                vec!["shop+0x1152"]
            ]
        );
    }
}
