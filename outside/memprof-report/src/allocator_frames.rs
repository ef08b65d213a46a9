//! Finds the allocator's own frames at the leaf, which would otherwise be the top row of every report.

use crate::names::{Frame, Names};
use crate::profile::Profile;
use crate::stacks::{AddressId, StackId};

/// File names of allocators in shared libraries, by prefix.
const LIBRARIES: [&str; 5] = [
    "libjemalloc.so",
    "libjemalloc_pic",
    "libtcmalloc",
    "libmimalloc.so",
    "memory_profile.so",
];

/// Allocation functions of C, C++ and Rust, sorted.
const FUNCTIONS: [&str; 22] = [
    "DoSampledAllocation",
    "aligned_alloc",
    "alloc::alloc::exchange_malloc",
    "calloc",
    "cfree",
    "dallocx",
    "do_malloc",
    "free",
    "malloc",
    "mallocx",
    "memalign",
    "operator new",
    "operator new(unsigned long)",
    "operator new[]",
    "posix_memalign",
    "pvalloc",
    "rallocx",
    "realloc",
    "reallocarray",
    "sdallocx",
    "valloc",
    "xallocx",
];

/// Prefixes of internal functions of allocators, and of trait implementations of Rust's, sorted. None is a prefix of
/// another. Those of a static jemalloc are from 5.3.
const INTERNAL_PREFIXES: [&str; 41] = [
    "<alloc::alloc::Global as ",
    "<jemallocator::",
    "<tikv_jemallocator::",
    "TCMalloc",
    "__rdl_",
    "__rg_",
    "__rust_alloc",
    "__rust_realloc",
    "_mi_",
    "_rjem_",
    "alloc::alloc::",
    "do_rallocx",
    "do_realloc",
    "fallback_impl",
    "hook_invoke_",
    "imalloc",
    "inallocx",
    "iralloc",
    "je_",
    "jemallocator::",
    "malloc_default",
    "mi_calloc",
    "mi_heap_",
    "mi_malloc",
    "mi_realloc",
    "mi_theap_",
    "mi_zalloc",
    "prof_alloc_prep",
    "prof_backtrace",
    "prof_realloc",
    "prof_tctx_create",
    "rjem_",
    "sdallocx_default",
    "sn_rust_",
    "tc_calloc",
    "tc_malloc",
    "tc_memalign",
    "tc_new",
    "tc_realloc",
    "tcmalloc::",
    "tikv_jemallocator::",
];

/// Suffixes of allocation functions in Rust's standard library.
const RUST_SUFFIXES: [&str; 3] = [
    "::__rust_alloc",
    "::__rust_alloc_zeroed",
    "::__rust_realloc",
];

/// Trait of Rust's global allocators, in the name of each of its functions behind the type, `<T`.
const GLOBAL_ALLOC: &str = " as core::alloc::global::GlobalAlloc>::";

/// Extensions of source files of interpreted and managed languages, whose functions called `free` are no allocator's.
const SCRIPT_EXTENSIONS: [&str; 14] = [
    "cjs", "cs", "ex", "java", "js", "jsx", "kt", "lua", "mjs", "php", "py", "rb", "ts", "tsx",
];

/// Returns, for each stack by its id, the number of addresses at the leaf that belong to the allocator: they lie in an
/// allocator's library, or all their functions are the allocator's. At least one address of each stack remains.
pub(crate) fn allocator_depths(profile: &Profile, names: &Names) -> Vec<u32> {
    let addresses = profile.stacks.addresses();
    let libraries: Vec<bool> = profile
        .mappings
        .iter()
        .map(|mapping| is_allocator_library(mapping.file_name()))
        .collect();
    let trimmed: Vec<bool> = (0..addresses.len())
        .map(|index| {
            let id = AddressId(index as u32);
            profile
                .mapping_of_frame(id)
                .is_some_and(|mapping| libraries[mapping])
                || is_allocator_address(names, id)
        })
        .collect();
    (0..profile.stacks.len())
        .map(|index| {
            let frames = profile.stacks.frames(StackId(index as u32));
            let depth = frames
                .iter()
                .take_while(|id| trimmed[id.0 as usize])
                .count();
            depth.min(frames.len().saturating_sub(1)) as u32
        })
        .collect()
}

/// Returns whether all frames of an address are the allocator's. False for an address without frames, and for one that
/// stands for a function of an interpreted program.
fn is_allocator_address(names: &Names, address: AddressId) -> bool {
    let frames = names.frames(address);
    !frames.is_empty()
        && !names.is_managed_word(address)
        && frames.iter().all(|frame| is_allocator_frame(frame, names))
}

/// Returns whether a frame is the allocator's, by its function's name. False if its source file is of an interpreted or
/// managed language, as in pprof profiles of other tools, whose function `free` frees no memory.
pub(crate) fn is_allocator_frame(frame: &Frame, names: &Names) -> bool {
    // The extensions are compared with the path's end, which is faster than to search a long path for its last dot.
    let is_script = || {
        let file = frame.file.map_or("", |file| names.strings.get(file));
        let extends = |extension: &&str| {
            let stem = file.strip_suffix(*extension);
            stem.is_some_and(|stem| stem.ends_with('.'))
        };
        SCRIPT_EXTENSIONS.iter().any(extends)
    };
    is_allocator_function(names.strings.get(frame.function)) && !is_script()
}

/// Returns whether a file name is that of an allocator's shared library, such as `libjemalloc.so.2`.
fn is_allocator_library(file: &str) -> bool {
    LIBRARIES.iter().any(|library| file.starts_with(library))
}

/// Returns whether a function is the allocator's, by its demangled name.
pub(crate) fn is_allocator_function(function: &str) -> bool {
    // glibc has internal aliases with these prefixes.
    let plain = function.strip_prefix("__libc_").unwrap_or(function);
    let plain = plain.strip_prefix("__GI_").unwrap_or(plain);
    FUNCTIONS.binary_search(&plain).is_ok()
        // Debug information puts the path of the crate that defines the allocator before these names.
        || RUST_SUFFIXES.iter().any(|end| function.ends_with(end))
        || has_internal_prefix(function)
        || function.starts_with('<') && function.contains(GLOBAL_ALLOC)
}

/// Returns whether a name begins with one of [`INTERNAL_PREFIXES`]. These are sorted and none is a prefix of another,
/// so only the last one that is not greater than the name can be a prefix of it.
fn has_internal_prefix(function: &str) -> bool {
    let later = INTERNAL_PREFIXES.partition_point(|prefix| *prefix <= function);
    let nearest = later.checked_sub(1).map(|index| INTERNAL_PREFIXES[index]);
    nearest.is_some_and(|prefix| function.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_of_script_is_no_allocator() {
        let check = |file: Option<&str>, expected: bool| {
            let mut names = Names::default();
            let frame = Frame {
                function: names.strings.intern("free"),
                linkage: None,
                file: file.map(|file| names.strings.intern(file)),
                line: 1,
                named: true,
            };
            assert_eq!(is_allocator_frame(&frame, &names), expected, "{file:?}");
        };
        check(None, true);
        check(Some("malloc.c"), true);
        check(Some("/srv/js/free"), true);
        check(Some("/srv/app/pool.js"), false);
        check(Some("file:///srv/app/pool.mjs"), false);
        check(Some("/srv/app/pool.py"), false);
    }

    #[test]
    fn tables_of_names_are_sorted_and_without_prefixes_of_prefixes() {
        assert!(FUNCTIONS.is_sorted());
        assert!(INTERNAL_PREFIXES.is_sorted());
        for pair in INTERNAL_PREFIXES.windows(2) {
            assert!(!pair[1].starts_with(pair[0]), "{pair:?}");
        }
        assert!(
            INTERNAL_PREFIXES
                .iter()
                .all(|prefix| has_internal_prefix(prefix))
        );
    }

    #[test]
    fn functions_of_global_allocators_are_allocator_frames() {
        let check = |function: &str, expected| {
            assert_eq!(is_allocator_function(function), expected, "{function}")
        };
        check(
            "<mimalloc::MiMalloc as core::alloc::global::GlobalAlloc>::alloc",
            true,
        );
        check(
            "<server::Counting<T> as core::alloc::global::GlobalAlloc>::realloc",
            true,
        );
        check("__rustc::__rust_alloc", true);
        check("mi_heap_malloc_aligned_at", true);
        check("<server::Cache as core::clone::Clone>::clone", false);
        check("mi_session_new", false);
    }
}
