//! Numbers of the functions in a profile.

use foldhash::HashMap;

use crate::names::StringId;
use crate::stacks::AddressId;
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
    /// Numbers the functions of all frames in a profile. Frames are of one function if they have its name. A function
    /// without a symbol is known by its mapping and the start of its code instead, if its code was read.
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
}
