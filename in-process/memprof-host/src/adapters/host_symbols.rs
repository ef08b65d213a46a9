//! Functions of the host program, looked up when they are needed: so the plugin's file has no undefined symbols, and
//! loads into every program.
#![expect(unsafe_code, reason = "dlsym(3)")]

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

/// Return address of an entry point: an address in the code that called it. A process may contain an interpreter twice,
/// or hide it from other libraries; so its functions are looked up in the library that called.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct CallerAddress(*const c_void);

/// Scope of a symbol lookup: the library that called with its dependencies, then the whole program.
#[derive(Debug)]
pub(super) struct HostSymbols {
    /// Handle of dlopen(3); `None` if the library that called was not found.
    library: Option<NonNull<c_void>>,
}

/// A symbol that the host does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingSymbol(pub(super) &'static CStr);

impl fmt::Display for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this program has no {}", self.0.to_string_lossy())
    }
}

impl CallerAddress {
    /// Opens the library that contains the caller's code, for symbol lookups. The library cannot be unloaded meanwhile,
    /// because its code is on the call stack. If it is not found, symbols are looked up in the whole program.
    pub(super) fn open_symbols(self) -> HostSymbols {
        let library = memprof_own::find_object_containing(self.0.addr()).and_then(|object| {
            // SAFETY: the loader's text, which it keeps as long as it has the library.
            let path = unsafe { CStr::from_ptr(object.dli_fname) };
            memprof_own::open_loaded_object(Some(path), 0)
        });
        HostSymbols { library }
    }
}

impl HostSymbols {
    /// Looks up a function or variable of the host: in the library that called with its dependencies, then in the whole
    /// program. Fails if the host has no such symbol.
    ///
    /// # Safety
    /// `F` is a pointer type that fits the symbol.
    pub(super) unsafe fn find<F: Copy>(&self, name: &'static CStr) -> Result<F, MissingSymbol> {
        let address = self.library.map_or(ptr::null_mut(), |library| {
            // SAFETY: dlsym(3) with an open handle and a NUL-terminated name.
            unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) }
        });
        // SAFETY: the caller promises that `F` fits the symbol.
        let symbol = unsafe { to_typed_pointer(address) };
        // SAFETY: the caller promises that `F` fits the symbol.
        symbol
            .or_else(|| unsafe { find_symbol(name) })
            .ok_or(MissingSymbol(name))
    }
}

impl Drop for HostSymbols {
    fn drop(&mut self) {
        if let Some(library) = self.library {
            // SAFETY: dlclose(3): `CallerAddress::open_symbols` opened the handle.
            unsafe { libc::dlclose(library.as_ptr()) };
        }
    }
}

/// Looks up a symbol that the program or one of its libraries exports. `None` if there is none.
///
/// # Safety
/// `F` is a pointer type that fits the symbol.
pub(super) unsafe fn find_symbol<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller promises that `F` fits the symbol.
    unsafe { to_typed_pointer(address) }
}

/// Converts an address to a pointer of type `F`, mostly a function pointer. `None` if the address is null.
///
/// # Safety
/// `F` is a pointer type that fits the symbol at `address`.
pub(super) unsafe fn to_typed_pointer<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the sizes are equal, and the caller promises that `F` fits the symbol.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_searched_in_caller_first() {
        let check =
            |caller: *const c_void, name: &'static CStr, expected: Result<(), MissingSymbol>| {
                // SAFETY: the symbol is used as an address only.
                let symbol = unsafe {
                    CallerAddress(caller)
                        .open_symbols()
                        .find::<*const c_void>(name)
                };
                assert_eq!(symbol.map(|_| ()), expected, "{name:?}");
            };
        let in_libc = libc::malloc as *const c_void;
        let in_program = symbols_are_searched_in_caller_first as *const c_void;
        let missing = c"no_such_function";
        for caller in [in_libc, in_program, ptr::null(), ptr::dangling()] {
            check(caller, c"getpid", Ok(()));
            check(caller, missing, Err(MissingSymbol(missing)));
        }
        assert_eq!(
            MissingSymbol(missing).to_string(),
            "this program has no no_such_function"
        );
    }
}
