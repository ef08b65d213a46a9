//! Symbolizes stacks of addresses that were read from a process, without a profile.

use crate::allocator_frames::{allocator_depths, is_allocator_function};
use crate::error::Result;
use crate::managed::is_managed;
use crate::names::{Frame, Names};
use crate::profile::{Address, Mapping, Profile};
use crate::pseudo_frames::PseudoFrame;
use crate::symbolize::{Sources, symbolize};

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
) -> Result<Vec<Vec<String>>> {
    let mut profile = Profile {
        mappings,
        ..Profile::default()
    };
    let interned = stacks.iter().map(|stack| {
        for frame in stack
            .iter()
            .filter(|frame| PseudoFrame::from_frame(**frame).is_none() && !is_managed(**frame))
        {
            let address = profile.stacks.intern_address(Address(*frame));
            profile.stacks.push_frame(address);
        }
        profile.stacks.finish_stack()
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

/// Names of frames, without allocator functions that were inlined at the leaf; the outermost frame always stays.
fn frame_names<'a>(frames: impl Iterator<Item = &'a Frame>, names: &Names) -> Vec<String> {
    let functions = frames.map(|frame| names.strings.get(frame.function));
    let functions: Vec<_> = functions.collect();
    let leading = functions
        .iter()
        .take_while(|function| is_allocator_function(function))
        .count();
    let kept = &functions[leading.min(functions.len().saturating_sub(1))..];
    kept.iter().map(ToString::to_string).collect()
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
        let functions = symbolize_stacks(&stacks, vec![mapping], &Sources::default()).unwrap();
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
