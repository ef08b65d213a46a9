//! Keeps the plugin's library loaded until the process ends.
//!
//! dlclose(3) of a Rust library can crash the program later: threads of the library, or its thread-local variables in
//! other threads, may end after it. `-Wl,-z,nodelete` prevents that, but only a build script can pass this option, so
//! the library prevents it at run time.
#![expect(unsafe_code, reason = "the loader's functions")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// `Dl_info` of dlfcn.h.
#[repr(C)]
struct DlInfo {
    path: *const c_char,
    start: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, image: *mut DlInfo) -> c_int;
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
}

/// Flags of bits/dlfcn.h.
const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
const RTLD_NODELETE: c_int = 0x1000;

/// Keeps the library that contains this code loaded until the process ends, even after dlclose(3). Does nothing if the
/// code is part of the program, or if the loader does not find the library.
pub fn stay_loaded() {
    let mut image = DlInfo {
        path: ptr::null(),
        start: ptr::null_mut(),
        symbol: ptr::null(),
        address: ptr::null_mut(),
    };
    // SAFETY: dladdr(3): fills the struct for an address of this image, or returns 0.
    let found = unsafe { dladdr(stay_loaded as *const () as *const c_void, &raw mut image) };
    if found == 0 || image.path.is_null() {
        return;
    }
    // SAFETY: dlopen(3) gets the path under which the loader knows this library. RTLD_NOLOAD: it loads nothing.
    let handle = unsafe { dlopen(image.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
    if !handle.is_null() {
        // SAFETY: dlclose(3) gets the handle that dlopen(3) returned; RTLD_NODELETE remains in force.
        unsafe { dlclose(handle) };
    }
}
