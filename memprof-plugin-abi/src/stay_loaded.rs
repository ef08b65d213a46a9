//! The plugin's library stays loaded until the process ends.
//!
//! dlclose of a Rust library whose threads, or whose thread-locals in other threads, may still end
//! crashes the program. `-Wl,-z,nodelete` prevents it, but only a build script can ask for that; so
//! the library asks for it itself.
#![expect(unsafe_code, reason = "the loader's functions")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// dlfcn.h, `Dl_info`.
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

/// bits/dlfcn.h.
const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
const RTLD_NODELETE: c_int = 0x1000;

/// Keeps the library that this code is linked into. Does nothing where that is the program.
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
    // SAFETY: dlopen(3) with the path under which the loader knows this library; loads nothing.
    let handle = unsafe { dlopen(image.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
    if !handle.is_null() {
        // SAFETY: dlclose(3) of that handle, which RTLD_NODELETE outlasts.
        unsafe { dlclose(handle) };
    }
}
