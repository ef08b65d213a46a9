//! The objects of this process, as the dynamic loader lists them.
#![expect(unsafe_code, reason = "a callback of dl_iterate_phdr(3)")]

use core::ffi::{c_int, c_void};

use libc::dl_phdr_info;

use super::object::ElfObject;

/// Visits the objects that the loader lists, in the loader's order, with the lock of the list held. Skips objects for
/// which [`ElfObject::from_info`] returns `None`, such as the loader itself.
pub(super) fn for_each_object(visit: &mut dyn FnMut(ElfObject)) {
    let mut visit = visit;
    // SAFETY: dl_iterate_phdr(3) calls `visit_object` with the pointer passed here, and returns before it dangles.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut visit).cast()) };
}

/// Callback of `dl_iterate_phdr(3)`: passes the object to the function behind `visit`, unless it is skipped. Returns 0
/// to continue the iteration.
unsafe extern "C" fn visit_object(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
    // SAFETY: `for_each_object` passes a pointer to its `visit`, and does not use it during the call.
    let visit = unsafe { &mut *visit.cast::<&mut dyn FnMut(ElfObject)>() };
    // SAFETY: dl_iterate_phdr(3) passes a pointer that is valid during the callback.
    let info = unsafe { &*info };
    // SAFETY: `info` comes from dl_iterate_phdr(3), which keeps the object loaded during the callback.
    if let Some(object) = unsafe { ElfObject::from_info(info) } {
        visit(object);
    }
    0
}
