//! Functions of the program that is the host, found when they are needed: so the plugin's file
//! has no undefined symbols, and loads into every program.
#![expect(unsafe_code, reason = "functions by their names")]

use std::ffi::CStr;
use std::ffi::c_void;

/// The address of a function that the program or one of its libraries exports.
///
/// # Safety
/// `F` is the type of a function pointer, and right for the function of that name.
pub(super) unsafe fn find<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: promised by the caller.
    unsafe { function(address) }
}

/// `address` as a function, unless it is null.
///
/// # Safety
/// `F` is the type of a function pointer, and right for what lies at `address`.
pub(super) unsafe fn function<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: of the same size, and promised by the caller.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}
