//! Other copies of this library in the process: a file that is loaded by two paths is in memory twice, and one copy has
//! the plugin. The copies decide which one under a shared lock, that of the copy that was loaded first. They agree on
//! it, because a copy is never unloaded, so that the loader's list of copies only grows.
#![expect(unsafe_code, reason = "symbols of other images")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::MaybeUninit;

use memprof_own::{ForkGuard, ProcessLock, ProcessLockGuard};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{memprof_plugin_entry_t, memprof_plugin_t};

use super::host_symbols::to_pointer;
use crate::instance::{Instance, check_entry, duplicate_id_error};
use crate::protocol::PluginInfo;

/// `memprof_adapter_instance`, which every copy exports: returns its plugin, or null.
type InstanceFn = unsafe extern "C" fn() -> *mut memprof_plugin_t;
/// `memprof_adapter_lock`, which every copy exports: returns the address of its lock.
type LockFn = unsafe extern "C" fn() -> *const u32;

/// This copy's lock, which all copies use if this copy was loaded first.
static LOCK: ProcessLock = ProcessLock::new();

/// Returns the address of this copy's lock, by which other copies of the library lock it too.
#[doc(hidden)]
pub fn lock_address() -> *const u32 {
    (&raw const LOCK).cast()
}

/// Locks instance creation and socket setup across all copies of the library in this process. Locks only this copy if
/// no copy in the loader's list exports a lock. Blocks; unlocks on drop.
pub(super) fn lock_all_copies(own: &'static memprof_plugin_entry_t) -> ProcessLockGuard<'static> {
    shared_lock(own).unwrap_or(&LOCK).lock()
}

/// Finds the plugin with the id of `own` that another copy of the library has created, and joins it. `None` if there is
/// none. Skips a copy that cannot be joined. Fails if the other library is not a copy but another plugin: its messages
/// have nothing to do with those of `own`.
pub(super) fn join_other_copy(
    own: &'static memprof_plugin_entry_t,
) -> Option<Result<Instance, Failure>> {
    // SAFETY: the entry is of this library, which is never unloaded.
    let info = unsafe { check_entry(own) }.ok()?;
    other_copies(own).find_map(|copy| {
        // SAFETY: a function of a copy of this library, which any thread may call.
        let plugin = unsafe { (copy.get_plugin)() };
        // SAFETY: the plugin is of this copy, which shares its instance and so never destroys it.
        let joined = (!plugin.is_null()).then(|| unsafe { Instance::join(copy.entry, plugin) });
        let joined = joined?.ok()?;
        Some(match are_versions_of_one(&info, joined.info()) {
            true => Ok(joined),
            false => Err(duplicate_library_error(own, copy.entry, &info.id)),
        })
    })
}

/// Returns the error that another library in the process, which is no copy, has created a plugin with the id of `own`.
/// `None` if there is none.
pub(super) fn find_duplicate(own: &'static memprof_plugin_entry_t) -> Option<Failure> {
    let _guard = lock_all_copies(own);
    join_other_copy(own)?.err()
}

/// Creates the error that a library cannot be used, because `loaded` is the entry of another one with the same id.
fn duplicate_library_error(
    own: *const memprof_plugin_entry_t,
    loaded: *const memprof_plugin_entry_t,
    id: &str,
) -> Failure {
    let [own, loaded] = library_names(own, loaded);
    duplicate_id_error(id, &own, &loaded)
}

/// Whether two plugins with one id can be two versions of one plugin: a later one may have more messages, but not
/// messages that the earlier one lacks and the reverse.
fn are_versions_of_one(one: &PluginInfo, other: &PluginInfo) -> bool {
    let has_all = |one: &PluginInfo, other: &PluginInfo| {
        let mut messages = other.messages.iter();
        messages.all(|message| one.messages.contains(message))
    };
    has_all(one, other) || has_all(other, one)
}

/// Returns the paths of two libraries with one id, `own` and the one that was loaded before. A file may have been replaced
/// meanwhile: then the second is `an older file of that name`.
pub(super) fn library_names(
    own: *const memprof_plugin_entry_t,
    loaded: *const memprof_plugin_entry_t,
) -> [String; 2] {
    let [own, loaded] = [own, loaded].map(library_path);
    let loaded = match own == loaded {
        true => "an older file of that name".to_owned(),
        false => loaded,
    };
    [own, loaded]
}

/// Returns the path by which the program has loaded the library of an entry.
fn library_path(entry: *const memprof_plugin_entry_t) -> String {
    let path = find_library(entry).map(|library| library.dli_fname);
    let Some(path) = path.filter(|path| !path.is_null()) else {
        return "a library".to_owned();
    };
    // SAFETY: dladdr(3): a NUL-terminated path, valid while the library is loaded, and it is never unloaded.
    unsafe { CStr::from_ptr(path) }
        .to_string_lossy()
        .into_owned()
}

/// Finds the library that has an entry. `None` if none has it.
fn find_library(entry: *const memprof_plugin_entry_t) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr(3) takes any address, and writes to `info`.
    let found = unsafe { libc::dladdr(entry.cast(), info.as_mut_ptr()) };
    // SAFETY: all zeros are a valid Dl_info, and so is the result of dladdr(3).
    let info = unsafe { info.assume_init() };
    (found != 0).then_some(info)
}

/// Returns the lock of the copy that was loaded first, of those that export one. `None` if no copy does.
fn shared_lock(own: &'static memprof_plugin_entry_t) -> Option<&'static ProcessLock> {
    let lock = all_copies(own).find_map(|copy| copy.lock)?;
    // SAFETY: a function of a copy of this library, which any thread may call.
    let word = unsafe { lock() };
    // SAFETY: a `ProcessLock` of a library that is never unloaded; it is one word, `repr(transparent)`.
    Some(unsafe { &*word.cast() })
}

/// A library with a plugin of the same id, possibly this one.
struct LibraryCopy {
    entry: *const memprof_plugin_entry_t,
    get_plugin: InstanceFn,
    lock: Option<LockFn>,
}

/// Iterates over the copies except that of `own`, in the order in which they were loaded. There are none if `own` is
/// invalid.
fn other_copies(own: &'static memprof_plugin_entry_t) -> impl Iterator<Item = LibraryCopy> {
    // `own` is not the entry that its library exports.
    let base = |entry| find_library(entry).map(|library| library.dli_fbase);
    let own_base = base(own);
    all_copies(own).filter(move |copy| base(copy.entry) != own_base)
}

/// Iterates over all copies, in the order in which they were loaded. There are none if `own` is invalid.
fn all_copies(own: &'static memprof_plugin_entry_t) -> impl Iterator<Item = LibraryCopy> {
    // SAFETY: the entry is of this library, which is never unloaded.
    let id = unsafe { check_entry(own) }.ok().map(|own| own.id);
    let id = id.into_iter();
    // The copies are opened after the walk of the loader's list, during which dlopen(3) must not be called.
    id.flat_map(|id| {
        let copies = loaded_paths()
            .into_iter()
            .filter_map(|path| find_copy(&path));
        copies.filter(move |copy| {
            // SAFETY: the entry is of a copy, which is never unloaded.
            unsafe { check_entry(copy.entry) }.is_ok_and(|other| other.id == id)
        })
    })
}

/// Returns the paths of all loaded libraries; the program's is empty. Allocates nothing while the loader holds its
/// lock: a sampled allocation unwinds, and an unwinder with its own lock may wait for the loader's.
fn loaded_paths() -> Vec<CString> {
    let mut paths = PathBuffer::default();
    // The first round only measures the size; libraries may be loaded before the next.
    while paths.bytes.len() < paths.needed || paths.needed == 0 {
        paths.bytes = Vec::with_capacity(paths.needed);
        paths.needed = 0;
        let _no_fork = ForkGuard::acquire();
        // SAFETY: dl_iterate_phdr(3) calls `collect_path` synchronously with this buffer.
        unsafe { libc::dl_iterate_phdr(Some(collect_path), (&raw mut paths).cast()) };
    }
    let paths = paths.bytes.split_inclusive(|byte| *byte == 0);
    let paths = paths.filter_map(|path| CStr::from_bytes_with_nul(path).ok());
    paths.map(CStr::to_owned).collect()
}

/// Paths, copied into memory that was allocated before the walk.
#[derive(Debug, Default)]
struct PathBuffer {
    /// Paths that fit, each with its NUL.
    bytes: Vec<u8>,
    /// Size of all paths in bytes.
    needed: usize,
}

/// Copies the path of a library, if it fits, and counts its bytes. Called by `dl_iterate_phdr(3)`; returns 0, so that
/// the iteration continues.
unsafe extern "C" fn collect_path(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    buffer: *mut c_void,
) -> c_int {
    // SAFETY: `loaded_paths` passes its buffer.
    let buffer = unsafe { &mut *buffer.cast::<PathBuffer>() };
    // SAFETY: dl_iterate_phdr(3): `info` is valid during the call.
    let path = unsafe { (*info).dlpi_name };
    if !path.is_null() {
        // SAFETY: dl_iterate_phdr(3): the name is NUL-terminated and valid during the call.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
        buffer.needed += path.len();
        if buffer.needed <= buffer.bytes.capacity() {
            buffer.bytes.extend_from_slice(path);
        }
    }
    0
}

/// Returns the copy at a path. `None` if no library is loaded from there, or if it is no copy.
fn find_copy(path: &CStr) -> Option<LibraryCopy> {
    let library = memprof_own::open_loaded_object(Some(path), 0)?.as_ptr();
    // SAFETY: dlsym(3) with an open handle and a NUL-terminated name.
    let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let entry = symbol(c"memprof_plugin_entry");
    let get_plugin = symbol(c"memprof_adapter_instance");
    let lock = symbol(c"memprof_adapter_lock");
    // SAFETY: dlclose(3): the handle was opened above. A library with these symbols is never unloaded (`-z nodelete`).
    unsafe { libc::dlclose(library) };
    let entry = entry.cast_const().cast::<memprof_plugin_entry_t>();
    // SAFETY: `export_adapters!` exports a function of this type.
    let get_plugin: InstanceFn = unsafe { to_pointer(get_plugin) }?;
    // SAFETY: `export_adapters!` exports a function of this type.
    let lock: Option<LockFn> = unsafe { to_pointer(lock) };
    (!entry.is_null()).then_some(LibraryCopy {
        entry,
        get_plugin,
        lock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_one_plugin_differ_by_additions_only() {
        let check = |one: &str, other: &str, expected: bool| {
            let [one, other] = [one, other].map(|messages| PluginInfo {
                messages: messages.split_whitespace().map(str::to_owned).collect(),
                ..PluginInfo::default()
            });
            assert_eq!(are_versions_of_one(&one, &other), expected);
            assert_eq!(are_versions_of_one(&other, &one), expected);
        };
        check("greet count", "count greet", true);
        check("greet count", "greet count sum", true);
        check("greet count", "sum", false);
        check("greet count", "greet sum", false);
        check("", "sum", true);
    }
}
