//! Functions and variables that only some versions of glibc export.
#![expect(unsafe_code, reason = "dlopen(3) and dlsym(3)")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// Looks up a name in libc and in the loader, on which libc depends. `RTLD_DEFAULT` would find a symbol of the program
/// with that name first. `None` if the C library is not glibc, or lacks the name.
///
/// Takes the loader's lock, because dlsym(3) does.
pub fn libc_symbol(name: &CStr) -> Option<NonNull<c_void>> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: dlopen(3): the library is loaded already, so no constructor runs. The handle is never closed.
    let libc = NonNull::new(unsafe { libc::dlopen(c"libc.so.6".as_ptr(), flags) })?;
    // SAFETY: dlsym(3) with an open handle and a NUL-terminated name.
    NonNull::new(unsafe { libc::dlsym(libc.as_ptr(), name.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_libc_and_loader_are_found() {
        assert!(libc_symbol(c"getpid").is_some());
        assert!(libc_symbol(c"_rtld_global").is_some());
        assert_eq!(libc_symbol(c"memprof_plugin_entry"), None);
    }
}
