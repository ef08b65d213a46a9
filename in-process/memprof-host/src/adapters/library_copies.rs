//! Other copies of this library in the process: a file that is loaded by two paths is there twice, and one
//! of them has the plugin. Which one is settled under a lock that all copies share: that of the copy that was loaded
//! first. The loader's list only grows, for a copy is never unloaded, so all of them agree.
#![expect(unsafe_code, reason = "symbols of other images")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use memprof_own::{ForkGuard, ProcessLock, ProcessLockGuard};
use memprof_plugin_abi::raw::{memprof_plugin_entry_t, memprof_plugin_t};

use super::host_symbols::function;
use crate::instance::{Instance, check_entry};

/// `memprof_adapter_instance`, which every copy exports: its instance, or null.
type ShareFn = unsafe extern "C" fn() -> *mut memprof_plugin_t;
/// `memprof_adapter_lock`, which every copy exports: its lock's word.
type LockFn = unsafe extern "C" fn() -> *const u32;

/// This copy's lock, for all copies where this is the first one.
static LOCK: ProcessLock = ProcessLock::new();

/// The address of this copy's lock.
#[doc(hidden)]
pub fn lock_word() -> *const u32 {
    (&raw const LOCK).cast()
}

/// Waits until no other thread of the process, in whichever copy, makes an instance or opens the socket. None does
/// while what is returned lives.
pub(super) fn lock_all_copies(own: &'static memprof_plugin_entry_t) -> ProcessLockGuard<'static> {
    shared_lock(own).unwrap_or(&LOCK).lock()
}

/// The plugin that another copy has created, by the id of `own`.
pub(super) fn instance_of_other_copy(own: &'static memprof_plugin_entry_t) -> Option<Instance> {
    copies(own).find_map(|copy| {
        if ptr::eq(copy.entry, own) {
            return None;
        }
        // SAFETY: any thread may call it.
        let plugin = unsafe { (copy.share)() };
        // SAFETY: of one copy, which shares its instance, and so never destroys it.
        (!plugin.is_null()).then(|| unsafe { Instance::join(copy.entry, plugin) }.ok())?
    })
}

/// The lock of the copy that was loaded first.
fn shared_lock(own: &'static memprof_plugin_entry_t) -> Option<&'static ProcessLock> {
    let lock = copies(own).find_map(|copy| copy.lock)?;
    // SAFETY: any thread may call it.
    let word = unsafe { lock() };
    // SAFETY: the lock of a library that is never unloaded; one word, `repr(transparent)`.
    Some(unsafe { &*word.cast() })
}

/// A library with a plugin of the same id; this one too.
struct LibraryCopy {
    entry: *const memprof_plugin_entry_t,
    share: ShareFn,
    lock: Option<LockFn>,
}

/// All copies, in the order in which they were loaded.
fn copies(own: &'static memprof_plugin_entry_t) -> impl Iterator<Item = LibraryCopy> {
    // SAFETY: the entry of this library.
    let id = unsafe { check_entry(own) }.ok().map(|own| own.id);
    let id = id.into_iter();
    // They are asked only now: dlopen(3) must not be called while the loader's list is walked.
    id.flat_map(|id| {
        let copies = loaded().into_iter().filter_map(|path| copy_in(&path));
        copies.filter(move |copy| {
            // SAFETY: the entry of a library that is never unloaded.
            unsafe { check_entry(copy.entry) }.is_ok_and(|other| other.id == id)
        })
    })
}

/// The paths of all libraries in the process; the program's is empty. Nothing is allocated while the loader holds its
/// lock: a sampled allocation unwinds, and an unwinder with a lock of its own may wait for the loader's.
fn loaded() -> Vec<CString> {
    let mut paths = Paths::default();
    // The first round only measures; libraries may come until the next.
    while paths.bytes.len() < paths.needed || paths.needed == 0 {
        paths.bytes = Vec::with_capacity(paths.needed);
        paths.needed = 0;
        let _no_fork = ForkGuard::acquire();
        // SAFETY: dl_iterate_phdr(3): `copy` gets what it casts to.
        unsafe { libc::dl_iterate_phdr(Some(copy), (&raw mut paths).cast()) };
    }
    let paths = paths.bytes.split_inclusive(|byte| *byte == 0);
    let paths = paths.filter_map(|path| CStr::from_bytes_with_nul(path).ok());
    paths.map(CStr::to_owned).collect()
}

#[derive(Debug, Default)]
struct Paths {
    /// Those that had room, each with its NUL.
    bytes: Vec<u8>,
    /// How much room all of them take.
    needed: usize,
}

unsafe extern "C" fn copy(info: *mut libc::dl_phdr_info, _size: usize, to: *mut c_void) -> c_int {
    // SAFETY: `loaded` passes its own.
    let to = unsafe { &mut *to.cast::<Paths>() };
    // SAFETY: dl_iterate_phdr(3): it lives during the call.
    let path = unsafe { (*info).dlpi_name };
    if !path.is_null() {
        // SAFETY: as above, NUL-terminated.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
        to.needed += path.len();
        if to.needed <= to.bytes.capacity() {
            to.bytes.extend_from_slice(path);
        }
    }
    0
}

/// The copy that a library is, if it is one.
fn copy_in(path: &CStr) -> Option<LibraryCopy> {
    // SAFETY: dlopen(3) with a NUL-terminated path; loads nothing. It waits for a library that is being loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: dlsym(3) with a handle that is open.
    let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let entry = symbol(c"memprof_plugin_entry");
    let share = symbol(c"memprof_adapter_instance");
    let lock = symbol(c"memprof_adapter_lock");
    // SAFETY: opened just now. What has these symbols is never unloaded (`-z nodelete`).
    unsafe { libc::dlclose(library) };
    let entry = entry.cast_const().cast::<memprof_plugin_entry_t>();
    // SAFETY: `export_adapters!` exports it so.
    let share: ShareFn = unsafe { function(share) }?;
    // SAFETY: as above.
    let lock: Option<LockFn> = unsafe { function(lock) };
    (!entry.is_null()).then_some(LibraryCopy { entry, share, lock })
}
