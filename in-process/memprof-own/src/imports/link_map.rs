//! The loader's list of loaded objects (link.h).

use super::object::{Object, read};

/// Offset of `r_map` in `struct r_debug`.
const MAP_OFFSET: usize = 8;
/// Offset of `r_next` in `struct r_debug_extended`, which exists from version 2 on (glibc 2.35).
const NEXT_NAMESPACE_OFFSET: usize = 40;

/// An entry of the list: the address of a `struct link_map`; never null.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkMap(usize);

impl LinkMap {
    /// Returns the first entry of the namespace that contains the object with the dynamic section `dynamic`. `None` if
    /// there is no such namespace.
    ///
    /// # Safety
    /// `debug` is the loader's `_r_debug`, and the lists do not change during the call.
    pub(super) unsafe fn find_namespace(dynamic: usize, mut debug: usize) -> Option<Self> {
        while debug != 0 {
            let first = Self::from_address(read(debug + MAP_OFFSET));
            if let Some(first) = first
                && first.iter().any(|map| map.dynamic() == dynamic)
            {
                return Some(first);
            }
            let version: i32 = read(debug);
            debug = match version {
                ..2 => 0,
                _ => read(debug + NEXT_NAMESPACE_OFFSET),
            };
        }
        None
    }

    /// Iterates over this entry and the later ones.
    pub(super) fn iter(self) -> impl Iterator<Item = Self> {
        // 24 is the offset of `l_next`.
        std::iter::successors(Some(self), |map| Self::from_address(read(map.0 + 24)))
    }

    /// Returns the object that this entry describes, by its load address and its dynamic section.
    // `l_addr` is the first field.
    pub(super) fn object(self) -> Object {
        // SAFETY: the loader lists an object as long as it is loaded.
        unsafe { Object::new(read(self.0), self.dynamic()) }
    }

    /// Address of the object's dynamic section (`l_ld`).
    fn dynamic(self) -> usize {
        read(self.0 + 16)
    }

    /// Returns the entry at an address. `None` if the address is 0, as behind the last entry.
    fn from_address(address: usize) -> Option<Self> {
        (address != 0).then_some(Self(address))
    }
}
