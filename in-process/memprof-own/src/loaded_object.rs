//! Handles of objects that are loaded already.
#![expect(unsafe_code, reason = "dlopen(3)")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use crate::ForkGuard;
use crate::containing_object::find_object_containing;

/// Opens a handle of the object that the loader knows by this path, or of the program if `path` is `None`. Passes
/// `flags` to dlopen(3), besides `RTLD_LAZY` and `RTLD_NOLOAD`. Loads nothing; waits for a library that is being
/// loaded. The caller must not hold a [`ForkGuard`], and must close the handle. `None` if no such object is loaded.
///
/// The first dlopen(3) of an object that the program started with runs its constructors, if the program has not yet,
/// and creates the list of its dependencies. A child that is forked before the list is complete would follow its null
/// pointers, so forks wait until dlopen(3) returns.
pub fn open_loaded_object(path: Option<&CStr>, flags: c_int) -> Option<NonNull<c_void>> {
    let path = path.map_or(ptr::null(), CStr::as_ptr);
    let flags = flags | libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // Waits before the guard is acquired, so that forks of other threads do not wait for the constructors of a library.
    wait_for_loader();
    let _no_fork = ForkGuard::acquire();
    // SAFETY: dlopen(3) with a NUL-terminated path or null; the object is loaded already.
    NonNull::new(unsafe { libc::dlopen(path, flags) })
}

/// Waits until no other thread loads a library. Returns at once on a thread that is loading one.
pub fn wait_for_loader() {
    // dladdr(3) takes the lock that is held while a library is loaded.
    let _own = find_object_containing(wait_for_loader as *const () as usize);
}
