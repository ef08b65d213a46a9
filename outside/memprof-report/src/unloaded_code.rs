//! Addresses of code that was unloaded before a profile was taken.

use crate::profile::{Address, Mapping, NO_STACK};

/// First of the addresses that stand for unloaded code; they end at [`NO_STACK`]. No processor has code there.
pub(crate) const UNLOADED_CODE: Address = Address(1 << 62);

impl Mapping {
    /// Returns whether its code was unloaded before the profile was taken.
    pub(crate) fn is_unloaded(&self) -> bool {
        (UNLOADED_CODE..NO_STACK).contains(&self.start)
    }
}
