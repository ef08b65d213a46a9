//! A profile with the names of its addresses.

use std::collections::HashSet;

use crate::names::Names;
use crate::profile::{Address, Profile};
use crate::stacks::{AddressId, StackId};

/// A profile with symbolized addresses, ready to be rendered.
#[derive(Debug)]
pub struct SymbolizedProfile {
    /// Profile with estimated values.
    pub profile: Profile,
    /// Frames of the profile's addresses.
    pub names: Names,
    /// By stack: number of addresses at the leaf that belong to the allocator.
    pub depths: Vec<u32>,
}

impl SymbolizedProfile {
    /// Frames of a stack without the allocator's, leaf first.
    pub(crate) fn program_frames(&self, stack: StackId) -> &[AddressId] {
        &self.profile.stacks.frames(stack)[self.depths[stack.0 as usize] as usize..]
    }

    /// Addresses of the allocator's frames at the leaves, as the dump has them.
    pub fn allocator_addresses(&self) -> HashSet<Address> {
        let stacks = &self.profile.stacks;
        let depths = (0..).map(StackId).zip(&self.depths);
        let frames = depths.flat_map(|(stack, &depth)| &stacks.frames(stack)[..depth as usize]);
        frames.map(|id| stacks.address(*id)).collect()
    }
}
