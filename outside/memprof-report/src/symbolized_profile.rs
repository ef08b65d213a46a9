//! A profile with the names of its addresses.

use crate::names::Names;
use crate::profile::Profile;

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
