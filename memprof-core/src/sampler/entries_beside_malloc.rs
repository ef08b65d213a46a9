//! Entry patches of allocators that do not serve `malloc`, such as a Rust program's own allocator. These allocators are
//! sampled together with `malloc`.

use memprof_sampler::{PatchedEntries, Role};

use crate::allocators::loaded_objects;
use crate::identity::AllocatorIdentity;

/// The tables of such entry patches that an interception uses.
#[derive(Debug)]
pub(super) struct EntriesBesideMalloc {
    used: Vec<PatchedEntries>,
    /// Address of the first function in each table of the process, at the time of the search.
    known: Vec<usize>,
}

impl EntriesBesideMalloc {
    /// Finds the tables of entry patches (jumps at the starts of functions) for allocators other than that of `malloc`.
    /// Skips tables whose patches are not all written. All tables found are used for sampling, and their addresses are
    /// recorded for [`is_outdated`](Self::is_outdated).
    pub(super) fn find() -> Self {
        Self {
            used: PatchedEntries::iter_beside_malloc().collect(),
            known: first_patched_functions(),
        }
    }

    /// Creates a list that uses no table, although the process may have some.
    pub(super) fn without_tables() -> Self {
        Self {
            used: Vec::new(),
            known: first_patched_functions(),
        }
    }

    /// Removes one of the used tables, and returns it for use as the main interception. `None` if there is none.
    pub(super) fn take_table(&mut self) -> Option<PatchedEntries> {
        self.used.pop()
    }

    /// Whether any table is used, so that samples may belong to another allocator than that of `malloc`.
    pub(super) fn has_tables(&self) -> bool {
        !self.used.is_empty()
    }

    /// Returns whether any hook is enabled in the entry tables that this sampler uses.
    pub(super) fn has_enabled_hooks(&self) -> bool {
        self.used.iter().any(|entries| entries.enabled_count() > 0)
    }

    /// Whether `memprof attach` has written or restored entry patches since the search.
    pub(super) fn is_outdated(&self) -> bool {
        self.known != first_patched_functions()
    }

    /// Enables the hooks of all used tables. `None` if a patched function no longer begins with memprof's jump.
    pub(super) fn enable_hooks(&self) -> Option<()> {
        let mut used = self.used.iter();
        used.try_for_each(|entries| entries.enable().map(drop))
    }

    /// Disables the hooks of functions with `role`, or all hooks if it is `None`.
    pub(super) fn disable_hooks(&self, role: Option<Role>) {
        for entries in &self.used {
            entries.disable(role);
        }
    }
}

/// Address of the first function in each table of patched functions that `memprof attach` has finished, but for that of
/// `malloc`. Callers tell the tables apart by it.
fn first_patched_functions() -> Vec<usize> {
    let tables = PatchedEntries::iter_beside_malloc();
    tables.map(|entries| entries.first_function()).collect()
}

/// Whether `memprof attach` has patched the functions of an allocator that does not serve `malloc`. It has if patched
/// functions are in the object that contains the allocator.
pub(super) fn is_non_malloc_allocator_patched(allocator: &AllocatorIdentity) -> bool {
    let functions = first_patched_functions();
    !allocator.owns_malloc
        && !functions.is_empty()
        && loaded_objects::list_loaded_objects().iter().any(|object| {
            object.contains(allocator.address)
                && functions.iter().any(|function| object.contains(*function))
        })
}

/// Names of the allocators that do not serve `malloc` and have patched functions. Omits an allocator if one of the
/// addresses in `known` is in the same object, because memprof also found that allocator by its symbols.
pub(crate) fn patched_allocators_beside_malloc(known: &[usize]) -> Vec<&'static str> {
    let objects = loaded_objects::list_loaded_objects();
    let is_known = |entries: &PatchedEntries| {
        let function = entries.first_function();
        let object = objects.iter().find(|object| object.contains(function));
        object.is_some_and(|object| known.iter().any(|address| object.contains(*address)))
    };
    let unknown = PatchedEntries::iter_beside_malloc().filter(|entries| !is_known(entries));
    unknown
        .filter_map(|entries| entries.allocator_name())
        .collect()
}
