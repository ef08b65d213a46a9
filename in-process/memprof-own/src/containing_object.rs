//! The loaded object that contains an address.
#![expect(unsafe_code, reason = "dladdr(3)")]

use std::mem::MaybeUninit;
use std::ptr;

/// Finds the loaded object that contains an address, by dladdr(3), which may wait for the loader's lock. The path in
/// the result is never null. `None` if no loaded object contains the address.
pub fn find_object_containing(address: usize) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr(3) takes any address, and fills in `info` unless it returns 0.
    let found = unsafe { libc::dladdr(ptr::without_provenance(address), info.as_mut_ptr()) };
    // SAFETY: filled in by dladdr(3), or zeros, which are valid.
    let info = unsafe { info.assume_init() };
    (found != 0 && !info.dli_fname.is_null()).then_some(info)
}
