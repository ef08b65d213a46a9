//! Other copies of this library in the process: a file that is loaded by two paths is there twice, and one
//! of them has the plugin.
#![expect(unsafe_code, reason = "symbols of other images")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use memprof_plugin_abi::raw::{memprof_plugin_entry_t, memprof_plugin_t};

use super::symbol::function;
use crate::instance::{Instance, check_entry};

/// `memprof_adapter_instance`, which every copy exports: its instance, or null.
type Share = unsafe extern "C" fn() -> *mut memprof_plugin_t;

/// The plugin that another copy has created, by the id of `own`.
pub(super) fn joined(own: &'static memprof_plugin_entry_t) -> Option<Instance> {
    // SAFETY: the entry of this library.
    let id = unsafe { check_entry(own) }.ok()?.id;
    // They are asked only now: dlopen(3) must not be called while the loader's list is walked.
    loaded().iter().find_map(|path| {
        let (entry, plugin) = instance_in(path, own)?;
        // SAFETY: of one copy, which shares its instance, and so never destroys it.
        let joined = unsafe { Instance::join(entry, plugin) }.ok()?;
        (joined.info().id == id).then_some(joined)
    })
}

/// The paths of all libraries in the process; the program's is empty.
fn loaded() -> Vec<CString> {
    unsafe extern "C" fn push(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: `loaded` passes its own vector.
        let paths = unsafe { &mut *paths.cast::<Vec<CString>>() };
        // SAFETY: dl_iterate_phdr(3): it lives during the call.
        let name = unsafe { (*info).dlpi_name };
        if !name.is_null() {
            // SAFETY: as above, NUL-terminated.
            paths.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: dl_iterate_phdr(3): `push` gets what it casts to.
    unsafe { libc::dl_iterate_phdr(Some(push), (&raw mut paths).cast()) };
    paths
}

/// Entry and plugin of a library that is another copy and has one.
fn instance_in(
    path: &CStr,
    own: *const memprof_plugin_entry_t,
) -> Option<(*const memprof_plugin_entry_t, *mut memprof_plugin_t)> {
    // SAFETY: dlopen(3) with a NUL-terminated path; loads nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: dlsym(3) with a handle that is open.
    let share = unsafe { libc::dlsym(library, c"memprof_adapter_instance".as_ptr()) };
    // SAFETY: as above.
    let entry = unsafe { libc::dlsym(library, c"memprof_plugin_entry".as_ptr()) };
    // SAFETY: opened just now. What has these symbols is never unloaded (`-z nodelete`).
    unsafe { libc::dlclose(library) };
    let entry = entry.cast_const().cast::<memprof_plugin_entry_t>();
    if entry.is_null() || ptr::eq(entry, own) {
        return None;
    }
    // SAFETY: `export_adapters!` exports it so.
    let share: Share = unsafe { function(share) }?;
    // SAFETY: any thread may call it.
    let plugin = unsafe { share() };
    (!plugin.is_null()).then_some((entry, plugin))
}
