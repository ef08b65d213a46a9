//! Finds the allocator's own frames at the leaf, which would otherwise be the top row of every report.

use crate::names::Names;
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

/// Allocation functions of C, C++ and Rust.
const FUNCTIONS: [&str; 22] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "free",
    "cfree",
    "memalign",
    "posix_memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "mallocx",
    "rallocx",
    "xallocx",
    "dallocx",
    "sdallocx",
    "operator new",
    "operator new[]",
    "do_malloc",
    "DoSampledAllocation",
    "alloc::alloc::exchange_malloc",
    "operator new(unsigned long)",
];

/// Prefixes of internal allocator functions. Those of a static jemalloc are from 5.3.
const INTERNAL_PREFIXES: [&str; 39] = [
    "mi_malloc",
    "mi_zalloc",
    "mi_calloc",
    "mi_realloc",
    "mi_heap_",
    "mi_theap_",
    "_mi_",
    "sn_rust_",
    "je_",
    "_rjem_",
    "rjem_",
    "prof_backtrace",
    "prof_tctx_create",
    "prof_alloc_prep",
    "prof_realloc",
    "hook_invoke_",
    "malloc_default",
    "sdallocx_default",
    "imalloc",
    "irallocx",
    "iralloc",
    "do_rallocx",
    "do_realloc",
    "inallocx",
    "fallback_impl",
    "tcmalloc::",
    "TCMalloc",
    "tc_malloc",
    "tc_calloc",
    "tc_realloc",
    "tc_new",
    "tc_memalign",
    "__rust_alloc",
    "__rust_realloc",
    "__rdl_",
    "__rg_",
    "alloc::alloc::",
    "tikv_jemallocator::",
    "jemallocator::",
];

/// Suffixes of allocation functions in Rust's standard library.
const RUST_SUFFIXES: [&str; 3] = [
    "::__rust_alloc",
    "::__rust_alloc_zeroed",
    "::__rust_realloc",
];

/// Prefixes of trait implementations of Rust allocators.
const RUST_TRAIT_PREFIXES: [&str; 3] = [
    "<tikv_jemallocator::",
    "<jemallocator::",
    "<alloc::alloc::Global as ",
];

/// Trait of Rust's global allocators, in the name of each of its functions behind the type, `<T`.
const GLOBAL_ALLOC: &str = " as core::alloc::global::GlobalAlloc>::";

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

/// Returns whether all frames of an address are the allocator's; false if it has none or is interpreted code.
fn is_allocator_address(names: &Names, address: AddressId) -> bool {
    let frames = names.frames(address);
    !frames.is_empty()
        && !names.is_managed(address)
        && frames
            .iter()
            .all(|frame| is_allocator_function(names.strings.get(frame.function)))
}

/// Returns whether a file name is that of an allocator's shared library, such as `libjemalloc.so.2`.
fn is_allocator_library(file: &str) -> bool {
    LIBRARIES.iter().any(|library| file.starts_with(library))
}

/// Returns whether a function is the allocator's, by its demangled name.
pub(crate) fn is_allocator_function(function: &str) -> bool {
    // glibc's internal aliases begin so.
    let plain = function
        .trim_start_matches("__libc_")
        .trim_start_matches("__GI_");
    FUNCTIONS.contains(&plain)
        // Debug information names these with the path of the crate that defines the allocator.
        || RUST_SUFFIXES.iter().any(|end| function.ends_with(end))
        || INTERNAL_PREFIXES.iter().any(|prefix| function.starts_with(prefix))
        || RUST_TRAIT_PREFIXES
            .iter()
            .any(|prefix| function.starts_with(prefix))
        || function.starts_with('<') && function.contains(GLOBAL_ALLOC)
}

#[cfg(test)]
mod tests {
    use super::*;

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
