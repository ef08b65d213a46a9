//! Functions and variables that glibc exports, and only some versions of it.
#![expect(unsafe_code, reason = "dlopen(3) and dlsym(3)")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// Looks up a name in libc and in the loader, on which libc depends. A program may export another thing of that name,
/// which `RTLD_DEFAULT` would find first. `None` in another C library than glibc.
///
/// Takes the loader's lock, as dlsym(3) does.
pub fn libc_symbol(name: &CStr) -> Option<NonNull<c_void>> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: dlopen(3): a library that is loaded already, so that no constructor runs. It is never closed.
    let libc = NonNull::new(unsafe { libc::dlopen(c"libc.so.6".as_ptr(), flags) })?;
    // SAFETY: dlsym(3) with an open handle and a NUL-terminated name.
    NonNull::new(unsafe { libc::dlsym(libc.as_ptr(), name.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libc_and_of_the_loader_are_found() {
        assert!(libc_symbol(c"getpid").is_some());
        assert!(libc_symbol(c"_rtld_global").is_some());
        assert_eq!(libc_symbol(c"memprof_plugin_entry"), None);
    }
}
