//! Numbers of the functions in a profile.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::code_origin::CodeOrigins;
use crate::names::StringId;
use crate::stacks::{AddressId, StackId};
use crate::symbolized_profile::SymbolizedProfile;

/// A function: by its name or, without one, by its mapping and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FunctionKey {
    Named(StringId),
    At(Option<usize>, u64),
}

/// Number of a function in [`FunctionIds`].
pub(super) type FunctionId = u32;

/// Functions of a profile's frames, numbered, so that a pass over all stacks looks nothing up by a hash.
pub(super) struct FunctionIds {
    /// By [`AddressId`]: the functions of its frames, innermost first.
    pub(super) by_address: Vec<Box<[FunctionId]>>,
    pub(super) count: usize,
}

impl FunctionIds {
    /// Numbers the functions of all frames in a profile. Two frames are of one function if they have the same name. If
    /// the function has no symbol but its code was read, they must have the same mapping and start of the code instead.
    pub(super) fn new(named: &SymbolizedProfile) -> Self {
        let mut known: HashMap<FunctionKey, FunctionId> = HashMap::default();
        let by_address = (0..named.profile.stacks.addresses().len() as u32).map(|index| {
            let address = AddressId(index);
            let shape = named.names.call_shapes.get(&address);
            let ids = named.names.frames(address).iter().map(|frame| {
                let key = match (frame.named, shape) {
                    (false, Some(shape)) => {
                        FunctionKey::At(named.profile.mapping_of_frame(address), shape.function)
                    }
                    _ => FunctionKey::Named(frame.function),
                };
                let next = known.len() as FunctionId;
                *known.entry(key).or_insert(next)
            });
            ids.collect()
        });
        Self {
            by_address: by_address.collect(),
            count: known.len(),
        }
    }

    /// Returns the number of stacks that contain each of `functions`. The allocator's frames at the leaf do not count.
    /// `candidates` says, by the index of a frame's verdict, whether the frame counts.
    pub(super) fn count_stacks_by_function(
        &self,
        named: &SymbolizedProfile,
        origins: &CodeOrigins,
        candidates: &[bool],
        functions: &[FunctionId],
    ) -> BTreeMap<FunctionId, u32> {
        let mut counts = vec![0; self.count];
        let mut is_counted = vec![false; self.count];
        for function in functions {
            is_counted[*function as usize] = true;
        }
        let counted_functions = |address: usize| {
            let functions = self.by_address[address].iter();
            let frames = functions.zip(&origins.by_address[address]);
            let counted = frames.filter(|(function, verdict)| {
                is_counted[**function as usize] && candidates[**verdict as usize]
            });
            counted.map(|(function, _)| *function as usize)
        };
        let addresses = 0..self.by_address.len();
        let has_counted: Vec<bool> = addresses
            .map(|address| counted_functions(address).next().is_some())
            .collect();
        // The last stack in which each function was counted: recursion must not count a stack twice.
        let mut last_stacks = vec![u32::MAX; self.count];
        for index in 0..named.profile.stacks.len() as u32 {
            let addresses = named.program_frames(StackId(index)).iter();
            let addresses = addresses.map(|address| address.0 as usize);
            for address in addresses.filter(|address| has_counted[*address]) {
                for function in counted_functions(address) {
                    if last_stacks[function] != index {
                        last_stacks[function] = index;
                        counts[function] += 1;
                    }
                }
            }
        }
        let count = |function: &FunctionId| (*function, counts[*function as usize]);
        functions.iter().map(count).collect()
    }
}
