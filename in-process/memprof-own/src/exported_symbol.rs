//! Symbols of a loaded object, looked up without the loader.
#![expect(unsafe_code, reason = "an entry of the loader's list")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// Looks up a name among the symbols that a loaded object itself exports. Calls none of the loader's functions: a
/// dlopen(3) of an object that the program started with would run its constructors, if the program has not yet.
/// `None` if the object does not export the name, exports it as an indirect function (IFUNC), whose address only its
/// resolver knows, or was linked with `--hash-style=sysv` alone.
///
/// # Safety
/// `object` is an entry that `dl_iterate_phdr(3)` passes to a callback, which is running.
#[cfg(target_arch = "x86_64")]
pub unsafe fn find_exported_symbol(
    object: &libc::dl_phdr_info,
    name: &CStr,
) -> Option<NonNull<c_void>> {
    // SAFETY: the caller promises that `object` is an entry of the loader's list.
    let object = unsafe { crate::imports::Object::from_list_entry(object) }?;
    let definition = object.find_definition_in_any_version(name)?;
    if definition.is_indirect() {
        return None;
    }
    NonNull::new(std::ptr::with_exposed_provenance_mut(definition.address))
}

/// Always `None`: this architecture's objects are not read.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn find_exported_symbol(_: &libc::dl_phdr_info, _: &CStr) -> Option<NonNull<c_void>> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::ffi::c_int;

    use super::*;

    /// Addresses of `getpid`, of an unknown name and of an indirect function in each loaded object.
    type Found = Vec<[Option<NonNull<c_void>>; 3]>;

    unsafe extern "C" fn look_up(
        object: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: dl_iterate_phdr(3): the entry is valid during the call.
        let object = unsafe { &*object };
        let addresses = [c"getpid", c"no_object_has_this", c"strlen"].map(|name| {
            // SAFETY: dl_iterate_phdr(3) calls this with an entry of the list.
            unsafe { find_exported_symbol(object, name) }
        });
        // SAFETY: the test passes its list.
        unsafe { &mut *found.cast::<Found>() }.push(addresses);
        0
    }

    #[test]
    fn exported_function_is_found_in_its_object_alone() {
        let mut found = Found::new();
        // SAFETY: dl_iterate_phdr(3) calls `look_up` synchronously with this list.
        unsafe { libc::dl_iterate_phdr(Some(look_up), (&raw mut found).cast()) };
        let getpid: Vec<_> = found.iter().filter_map(|[getpid, ..]| *getpid).collect();
        let expected = libc::getpid as *const () as usize;
        assert_eq!(
            getpid
                .iter()
                .map(|getpid| getpid.addr().get())
                .collect::<Vec<_>>(),
            [expected]
        );
        let mut others = found.iter().flat_map(|[_, others @ ..]| others);
        assert!(others.all(Option::is_none));
    }
}
