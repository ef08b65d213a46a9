//! Other copies of this library in the process: a file that is loaded by two paths is in memory twice, and one copy has
//! the plugin. The copies decide which one under a shared lock, that of the copy that was loaded first. They agree on
//! it, because a copy is never unloaded, so that the loader's list of copies only grows.
#![expect(unsafe_code, reason = "symbols of other images")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use memprof_own::{ForkGuard, ProcessLock, ProcessLockGuard};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{memprof_plugin_entry_t, memprof_plugin_t};

use super::host_symbols::to_typed_pointer;
use crate::instance::{Instance, check_entry, duplicate_id_error};
use crate::protocol::PluginInfo;

/// `memprof_adapter_instance`, which every copy exports: returns its plugin, or null.
type InstanceFn = unsafe extern "C" fn() -> *mut memprof_plugin_t;
/// `memprof_adapter_lock`, which every copy exports: returns the address of its lock.
type LockFn = unsafe extern "C" fn() -> *const u32;

/// Number of libraries with an adapter that most processes do not exceed.
const USUAL_LIBRARIES: usize = 8;

/// This copy's lock, which all copies use if this copy was loaded first.
static LOCK: ProcessLock = ProcessLock::new();

/// Returns the address of this copy's lock, by which other copies of the library lock it too.
#[doc(hidden)]
pub fn lock_address() -> *const u32 {
    (&raw const LOCK).cast()
}

/// Locks instance creation and socket setup across all copies of the library in this process, by the lock that they
/// share. Locks only this copy if no copy in the loader's list exports a lock. Blocks; unlocks on drop.
pub(super) fn lock_across_copies(
    own: &'static memprof_plugin_entry_t,
) -> ProcessLockGuard<'static> {
    shared_lock(own).unwrap_or(&LOCK).lock()
}

/// Finds the plugin with the id of `own` that another copy of the library has created, and joins it. `None` if there is
/// none, or if `own` is invalid. Skips a copy that cannot be joined. Fails if the other library is no copy but another
/// plugin with the same id: neither of the two has all messages of the other.
pub(super) fn join_other_copy(
    own: &'static memprof_plugin_entry_t,
) -> Option<Result<Instance, Failure>> {
    // SAFETY: the entry is of this library, which is never unloaded.
    let info = unsafe { check_entry(own) }.ok()?;
    other_copies(own).find_map(|copy| {
        // SAFETY: a function of a copy of this library, which any thread may call.
        let plugin = unsafe { (copy.get_plugin)() };
        // SAFETY: the plugin is of this copy, which shares its instance and so never destroys it.
        let joined =
            (!plugin.is_null()).then(|| unsafe { Instance::from_other_copy(copy.entry, plugin) });
        let joined = joined?.ok()?;
        Some(match are_versions_of_same_plugin(&info, joined.info()) {
            true => Ok(joined),
            false => Err(duplicate_library_error(own, copy.entry, &info.id)),
        })
    })
}

/// Returns the error that another library in the process, which is no copy, has created a plugin with the id of `own`.
/// `None` if there is none. Waits for the lock of all copies.
pub(super) fn find_duplicate_error(own: &'static memprof_plugin_entry_t) -> Option<Failure> {
    let _guard = lock_across_copies(own);
    join_other_copy(own)?.err()
}

/// Creates the error that a library cannot be used, because `loaded` is the entry of another one with the same id.
fn duplicate_library_error(
    own: *const memprof_plugin_entry_t,
    loaded: *const memprof_plugin_entry_t,
    id: &str,
) -> Failure {
    let [own, loaded] = library_paths(own, loaded);
    duplicate_id_error(id, &own, &loaded)
}

/// Returns whether two plugins with one id can be two versions of one plugin: all messages of one are among those of
/// the other, because a later version may add some.
fn are_versions_of_same_plugin(one: &PluginInfo, other: &PluginInfo) -> bool {
    let has_all = |one: &PluginInfo, other: &PluginInfo| {
        let mut messages = other.messages.iter();
        messages.all(|message| one.messages.contains(message))
    };
    has_all(one, other) || has_all(other, one)
}

/// Returns the paths of two libraries with one id, `own` and the one that was loaded before, for a text. A file may
/// have been replaced meanwhile: then the second is `an older file of that name`.
pub(super) fn library_paths(
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

/// Returns the path by which the program has loaded the library of an entry; `a library` if the loader does not know
/// it.
fn library_path(entry: *const memprof_plugin_entry_t) -> String {
    let Some(library) = memprof_own::find_object_containing(entry.addr()) else {
        return "a library".to_owned();
    };
    // SAFETY: the loader keeps this text as long as it has the library, which is never unloaded.
    unsafe { CStr::from_ptr(library.dli_fname) }
        .to_string_lossy()
        .into_owned()
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
    // Compares the base addresses of the libraries, because `own` is not the entry that its library exports.
    let base = |entry: *const memprof_plugin_entry_t| {
        memprof_own::find_object_containing(entry.addr()).map(|library| library.dli_fbase)
    };
    let own_base = base(own);
    all_copies(own).filter(move |copy| base(copy.entry) != own_base)
}

/// Iterates over all copies, in the order in which they were loaded. There are none if `own` is invalid.
fn all_copies(own: &'static memprof_plugin_entry_t) -> impl Iterator<Item = LibraryCopy> {
    // SAFETY: the entry is of this library, which is never unloaded.
    let id = unsafe { check_entry(own) }.ok().map(|own| own.id);
    id.into_iter().flat_map(|id| {
        let copies = loaded_adapter_libraries().into_iter();
        copies.filter(move |copy| {
            // SAFETY: the entry is of a loaded library with an adapter, which is never unloaded (`-z nodelete`).
            unsafe { check_entry(copy.entry) }.is_ok_and(|other| other.id == id)
        })
    })
}

/// Finds the loaded libraries that have a plugin with an adapter, in the order in which they were loaded. Waits while
/// another thread loads a library.
fn loaded_adapter_libraries() -> Vec<LibraryCopy> {
    // The list also has libraries that are being loaded: these are not relocated yet, and are unmapped if loading
    // fails. A library that is listed both before and after the wait is completely loaded.
    let listed = listed_adapter_libraries();
    memprof_own::wait_for_loader();
    let mut loaded = listed_adapter_libraries();
    let was_listed = |copy: &LibraryCopy| listed.iter().any(|other| other.entry == copy.entry);
    loaded.retain(was_listed);
    loaded
}

/// Finds the libraries in the loader's list that have a plugin with an adapter. Allocates nothing while the loader holds
/// the lock of its list: a sampled allocation unwinds, and an unwinder with its own lock may wait for the loader's.
fn listed_adapter_libraries() -> Vec<LibraryCopy> {
    let mut list = CopyList::with_capacity(USUAL_LIBRARIES);
    loop {
        {
            let _no_fork = ForkGuard::acquire();
            // SAFETY: dl_iterate_phdr(3) calls `collect_copy` synchronously with this list.
            unsafe { libc::dl_iterate_phdr(Some(collect_copy), (&raw mut list).cast()) };
        }
        if list.copies.len() == list.count {
            return list.copies;
        }
        // The list had no room for all libraries. Twice the room, because more may be loaded before the next round.
        list = CopyList::with_capacity(2 * list.count);
    }
}

/// Libraries, in memory that was allocated before the walk.
struct CopyList {
    /// Libraries that fit.
    copies: Vec<LibraryCopy>,
    /// Number of all libraries.
    count: usize,
}

impl CopyList {
    /// Creates an empty list with memory for that many libraries.
    fn with_capacity(capacity: usize) -> Self {
        Self {
            copies: Vec::with_capacity(capacity),
            count: 0,
        }
    }
}

/// Adds a library with an adapter, if it fits, and counts it. Called by `dl_iterate_phdr(3)`; returns 0, so that the
/// iteration continues.
unsafe extern "C" fn collect_copy(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    list: *mut c_void,
) -> c_int {
    // SAFETY: `listed_adapter_libraries` passes its list.
    let list = unsafe { &mut *list.cast::<CopyList>() };
    // SAFETY: dl_iterate_phdr(3): `info` is valid during the call.
    let library = unsafe { &*info };
    // SAFETY: dl_iterate_phdr(3) calls this with an entry of the list.
    if let Some(copy) = unsafe { to_library_copy(library) } {
        list.count += 1;
        if list.count <= list.copies.capacity() {
            list.copies.push(copy);
        }
    }
    0
}

/// Returns the plugin of a loaded library, by the symbols that `export_adapters!` and `export_plugin!` export. `None`
/// if the library lacks one of the symbols; only the one of the lock may be missing.
///
/// # Safety
/// `library` is an entry that `dl_iterate_phdr(3)` passes to a callback, which is running.
unsafe fn to_library_copy(library: &libc::dl_phdr_info) -> Option<LibraryCopy> {
    let symbol = |name: &CStr| {
        // SAFETY: the caller promises that it is an entry of the loader's list.
        let found = unsafe { memprof_own::find_exported_symbol(library, name) };
        found.map_or(ptr::null_mut(), NonNull::as_ptr)
    };
    // SAFETY: `export_adapters!` exports a function of this type.
    let get_plugin: InstanceFn = unsafe { to_typed_pointer(symbol(c"memprof_adapter_instance")) }?;
    // SAFETY: `export_adapters!` exports a function of this type.
    let lock: Option<LockFn> = unsafe { to_typed_pointer(symbol(c"memprof_adapter_lock")) };
    let entry = symbol(c"memprof_plugin_entry")
        .cast_const()
        .cast::<memprof_plugin_entry_t>();
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
            assert_eq!(are_versions_of_same_plugin(&one, &other), expected);
            assert_eq!(are_versions_of_same_plugin(&other, &one), expected);
        };
        check("greet count", "count greet", true);
        check("greet count", "greet count sum", true);
        check("greet count", "sum", false);
        check("greet count", "greet sum", false);
        check("", "sum", true);
    }
}
