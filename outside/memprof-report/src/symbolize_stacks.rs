//! The functions of stacks that come from no profile: addresses that somebody read in a process.

use crate::allocator_frames::{allocator_depths, is_allocator};
use crate::error::Result;
use crate::names::{Frame, Names};
use crate::profile::{Address, Mapping, Profile};
use crate::pseudo_frames::PseudoFrame;
use crate::symbolize::{Sources, symbolize};

/// The functions of each stack, leaf first, without those of the allocator. A stack is a list of return addresses,
/// leaf first, as a dump has it; `mappings` are those of its process, by address.
pub fn symbolize_stacks(
    stacks: &[Vec<u64>],
    mappings: Vec<Mapping>,
    sources: &Sources,
) -> Result<Vec<Vec<String>>> {
    let mut profile = Profile {
        mappings,
        ..Profile::default()
    };
    let interned = stacks.iter().map(|stack| {
        for frame in stack
            .iter()
            .filter(|frame| PseudoFrame::of(**frame).is_none())
        {
            let address = profile.stacks.intern_address(Address(*frame));
            profile.stacks.push(address);
        }
        profile.stacks.finish()
    });
    let interned: Vec<_> = interned.collect();
    let names = symbolize(&mut profile, sources, &|_, _| {})?;
    let depths = allocator_depths(&profile, &names);
    let functions = interned.into_iter().map(|stack| {
        let depth = depths[stack.0 as usize] as usize;
        let addresses = &profile.stacks.frames(stack)[depth..];
        let frames = addresses.iter().flat_map(|id| names.frames(*id));
        frame_names(frames, &names)
    });
    Ok(functions.collect())
}

/// Names of frames, without the allocator's functions that were inlined at the leaf.
fn frame_names<'a>(frames: impl Iterator<Item = &'a Frame>, names: &Names) -> Vec<String> {
    let functions = frames.map(|frame| names.strings.get(frame.function));
    let functions: Vec<_> = functions.collect();
    let leading = functions
        .iter()
        .take_while(|function| is_allocator(function))
        .count();
    let kept = &functions[leading.min(functions.len().saturating_sub(1))..];
    kept.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_no_callers_and_what_has_no_name_is_a_number() {
        let mapping = Mapping {
            start: Address(0x40_1000),
            end: Address(0x40_2000),
            offset: 0x1000,
            executable: true,
            path: "/no/such/shop".to_owned(),
            build_id: None,
        };
        let birth = 0x4d_5002 << 40 | 1;
        let stacks = [vec![0x40_1137, 0x40_1153, birth], vec![], vec![0x40_1153]];
        let found = symbolize_stacks(&stacks, vec![mapping], &Sources::default()).unwrap();
        assert_eq!(
            found,
            [
                vec!["shop+0x1136", "shop+0x1152"],
                vec![],
                vec!["shop+0x1152"]
            ]
        );
    }
}
