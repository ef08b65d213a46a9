//! Functions of the program that is the host, found when they are needed: so the plugin's file
//! has no undefined symbols, and loads into every program.
#![expect(unsafe_code, reason = "functions by their names")]

use std::ffi::{CStr, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

/// An address in the code that called an entry point: its return address. An interpreter may be in the
/// process twice, or not be seen by other libraries; so its functions are looked up in the one that called.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct CallerAddress(*const c_void);

/// The library that called, and what it depends on, then the whole program.
#[derive(Debug)]
pub(super) struct HostSymbols {
    /// Of dlopen(3); null where the program itself called.
    library: *mut c_void,
}

/// A function that the host does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingSymbol(pub(super) &'static CStr);

impl fmt::Display for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this program has no {}", self.0.to_string_lossy())
    }
}

impl CallerAddress {
    /// Opens the library in which the caller is, which stays loaded meanwhile: it is on the stack.
    pub(super) fn functions(self) -> HostSymbols {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: dladdr(3) takes any address, and fills in `info` unless it returns 0.
        let found = unsafe { libc::dladdr(self.0, info.as_mut_ptr()) };
        // SAFETY: filled in, or zeros, which are valid.
        let info = unsafe { info.assume_init() };
        let library = if found == 0 || info.dli_fname.is_null() {
            ptr::null_mut()
        } else {
            // SAFETY: dlopen(3): the loader's own text; loads nothing.
            unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
        };
        HostSymbols { library }
    }
}

impl HostSymbols {
    /// A function, or data, of the host by its name.
    ///
    /// # Safety
    /// `F` is a type of pointer, and right for what has that name.
    ///
    /// # Errors
    /// Nobody has that name.
    pub(super) unsafe fn find<F: Copy>(&self, name: &'static CStr) -> Result<F, MissingSymbol> {
        let address = if self.library.is_null() {
            ptr::null_mut()
        } else {
            // SAFETY: dlsym(3) with a handle that is open, and a NUL-terminated name.
            unsafe { libc::dlsym(self.library, name.as_ptr()) }
        };
        // SAFETY: promised by the caller.
        let found = unsafe { function(address) };
        // SAFETY: as above.
        found
            .or_else(|| unsafe { find(name) })
            .ok_or(MissingSymbol(name))
    }
}

impl Drop for HostSymbols {
    fn drop(&mut self) {
        if !self.library.is_null() {
            // SAFETY: opened by `CallerAddress::functions`.
            unsafe { libc::dlclose(self.library) };
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_the_caller() {
        let check =
            |caller: *const c_void, name: &'static CStr, expected: Result<(), MissingSymbol>| {
                // SAFETY: the address of it, which is not called.
                let found = unsafe {
                    CallerAddress(caller)
                        .functions()
                        .find::<*const c_void>(name)
                };
                assert_eq!(found.map(|_| ()), expected, "{name:?}");
            };
        let in_libc = libc::malloc as *const c_void;
        let in_program = functions_are_those_of_the_caller as *const c_void;
        let nowhere = c"no_such_function";
        for caller in [in_libc, in_program, ptr::null(), ptr::dangling()] {
            check(caller, c"getpid", Ok(()));
            check(caller, nowhere, Err(MissingSymbol(nowhere)));
        }
        assert_eq!(
            MissingSymbol(nowhere).to_string(),
            "this program has no no_such_function"
        );
    }
}
