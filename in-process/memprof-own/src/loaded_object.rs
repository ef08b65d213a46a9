//! Handles of objects that are loaded already.
#![expect(unsafe_code, reason = "dlopen(3)")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use crate::ForkGuard;

/// Opens the object that the loader knows by this path, or the program if there is none. `flags` are added to those of
/// dlopen(3). Loads nothing; waits for a library that is being loaded. The caller holds no [`ForkGuard`], and closes
/// the handle. `None` if no such object is loaded.
///
/// No fork happens meanwhile: the first dlopen(3) of an object that the program started with makes the list of its
/// dependencies. A child that is forked before the list is complete would follow its null pointers.
pub fn open_loaded_object(path: Option<&CStr>, flags: c_int) -> Option<NonNull<c_void>> {
    let path = path.map_or(ptr::null(), CStr::as_ptr);
    let flags = flags | libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    let _no_fork = ForkGuard::acquire();
    // SAFETY: dlopen(3) with a NUL-terminated path or null. With RTLD_NOLOAD it runs no code of the object.
    NonNull::new(unsafe { libc::dlopen(path, flags) })
}
