//! The loader's list of loaded objects (link.h).

use super::object::{Object, read_memory};

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
            let first = Self::from_address(read_memory(debug + MAP_OFFSET));
            if let Some(first) = first
                && first.iter().any(|map| map.dynamic() == dynamic)
            {
                return Some(first);
            }
            let version: i32 = read_memory(debug);
            debug = match version {
                // Older loaders have no list of namespaces.
                ..2 => 0,
                _ => read_memory(debug + NEXT_NAMESPACE_OFFSET),
            };
        }
        None
    }

    /// Iterates over this entry and the later ones.
    pub(super) fn iter(self) -> impl Iterator<Item = Self> {
        // 24 is the offset of `l_next`.
        std::iter::successors(Some(self), |map| {
            Self::from_address(read_memory(map.0 + 24))
        })
    }

    /// Returns the object that this entry describes, by its load address and its dynamic section.
    pub(super) fn object(self) -> Object {
        // `l_addr`, the load address, is the first field.
        // SAFETY: the loader lists an object as long as it is loaded.
        unsafe { Object::new(read_memory(self.0), self.dynamic()) }
    }

    /// Returns the address of the object's dynamic section: `l_ld`, at offset 16.
    fn dynamic(self) -> usize {
        read_memory(self.0 + 16)
    }

    /// Returns the entry at an address. `None` if the address is 0, which follows the last entry.
    fn from_address(address: usize) -> Option<Self> {
        (address != 0).then_some(Self(address))
    }
}
