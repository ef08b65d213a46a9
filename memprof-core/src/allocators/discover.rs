//! Finds every allocator of the process.
//!
//! The first match of `dlsym` is not enough: in a Rust host with its own jemalloc, `dlsym` may find a preloaded
//! jemalloc that holds nothing of the host's heap. So all candidates are collected: from the host's own pointers, from
//! the dynamic symbols, and from the symbol tables of the program and of each loaded object except memprof's image.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, CString};
use std::path::PathBuf;

use memchr::memmem;

use crate::allocators::allocator::Allocator;
use crate::allocators::glibc::{self, Glibc};
use crate::allocators::interposed::find_interposed_function;
use crate::allocators::jemalloc::{JemallocCandidate, identify_jemalloc};
use crate::allocators::loaded_objects::{self, LoadedObject};
use crate::allocators::mallctl::Mallctl;
use crate::allocators::mimalloc::{self, Mimalloc};
use crate::allocators::printout::JemallocReaders;
use crate::allocators::symbols::{self, ObjectSymbols, as_function};
use crate::allocators::tcmalloc::{self, Tcmalloc};
use crate::identity::FoundBy;

/// Function prefixes to look up with `dlsym`. Symbol tables are searched for any prefix.
const PREFIXES: [&str; 3] = ["", "_rjem_", "je_"];
/// Function that identifies a jemalloc. jemalloc calls it itself, so the linker never omits it.
const ANCHOR: &str = "mallctl";
const STATS_PRINT: &str = "malloc_stats_print";
/// Symbols that confirm a jemalloc. Another library may have a function named like [`ANCHOR`], but only jemalloc also
/// has one of these with the same prefix. If they are unused, the linker omits all but the variable `malloc_conf`.
const SIBLINGS: [&str; 6] = [
    "malloc_conf",
    "malloc_message",
    "mallocx",
    "mallctlnametomib",
    "mallctlbymib",
    STATS_PRINT,
];

#[derive(Debug)]
pub(crate) struct DiscoveredAllocators {
    /// Allocators; those with a profiler come first.
    pub allocators: Vec<Allocator>,
    /// File of the `malloc` that serves the process. `None` if it belongs to one of `allocators`.
    pub unknown_malloc: Option<PathBuf>,
    /// Sorted fingerprints of the objects whose files contain no allocator's symbols. They need no second search.
    pub without_allocators: Vec<u64>,
}

/// Finds every allocator in the process except one in the image that contains the address `own_image`. If none of them
/// serves `malloc`, also finds the file that does.
///
/// `host` is the jemalloc that the host process passed, if any. `readers` are the functions by which each jemalloc's
/// statistics are read later. `known` has the sorted fingerprints of objects in whose files an earlier search found no
/// allocator; these files are skipped. The result has the fingerprints of all objects without an allocator, for the
/// next search.
pub(crate) fn discover_allocators(
    host: Option<Mallctl>,
    own_image: usize,
    readers: JemallocReaders,
    known: &[u64],
) -> DiscoveredAllocators {
    let objects: Vec<_> = loaded_objects::list_loaded_objects()
        .into_iter()
        .filter(|object| !object.contains(own_image))
        .collect();
    let (tables, without_allocators) = read_allocator_symbols(&objects, known);
    let mut allocators: Vec<_> = jemalloc_candidates(host, &objects, &tables)
        .into_iter()
        .filter_map(|candidate| identify_jemalloc(candidate, readers))
        .map(Allocator::Jemalloc)
        .collect();
    let identify =
        |symbols: &ObjectSymbols<'_>| Tcmalloc::identify(symbols).map(Allocator::Tcmalloc);
    let is_own = tcmalloc::is_gperftools_function;
    allocators.extend(find_allocators_of_kind(
        identify,
        tcmalloc::ANCHOR,
        is_own,
        &objects,
        &tables,
    ));
    let identify =
        |symbols: &ObjectSymbols<'_>| Mimalloc::identify(symbols).map(Allocator::Mimalloc);
    let is_own = mimalloc::is_mimalloc_function;
    allocators.extend(find_allocators_of_kind(
        identify,
        mimalloc::ANCHOR,
        is_own,
        &objects,
        &tables,
    ));
    let identify = |symbols: &ObjectSymbols<'_>| Glibc::identify(symbols).map(Allocator::Glibc);
    // glibc's calls of its own functions are bound at link time, except for malloc and related functions. So no name
    // is checked.
    allocators.extend(find_allocators_of_kind(
        identify,
        glibc::ANCHOR,
        |_| false,
        &objects,
        &tables,
    ));

    let malloc_is_known = allocators.iter().any(|each| each.identity().owns_malloc);
    let malloc = symbols::malloc_address().filter(|_| !malloc_is_known);
    let unknown = objects
        .iter()
        .find(|object| malloc.is_some_and(|malloc| object.contains_code_at(malloc)));
    DiscoveredAllocators {
        unknown_malloc: unknown.map(|object| object.path.clone()),
        allocators,
        without_allocators,
    }
}

/// Reads the allocator symbols of each object's file. Also returns the sorted fingerprints of the objects that have
/// none. Objects whose fingerprints are in `known`, which must be sorted, are not read again. A file that cannot be
/// read is in neither list.
fn read_allocator_symbols<'a>(
    objects: &'a [LoadedObject],
    known: &[u64],
) -> (Vec<ObjectSymbols<'a>>, Vec<u64>) {
    let (mut tables, mut without_allocators) = (Vec::new(), Vec::new());
    for object in objects {
        let fingerprint = object.fingerprint();
        let found = match known.binary_search(&fingerprint) {
            Ok(_) => Ok(None),
            Err(_) => ObjectSymbols::from_file(object, &file_anchors(), is_allocator_symbol),
        };
        match found {
            Ok(Some(symbols)) => tables.push(symbols),
            Ok(None) => without_allocators.push(fingerprint),
            // The file may be readable at the next search.
            Err(error) => log::debug!("{}: {error}", object.path.display()),
        }
    }
    without_allocators.sort_unstable();
    (tables, without_allocators)
}

/// Names that identify a file with an allocator: one each for jemalloc, tcmalloc and mimalloc. glibc is not searched
/// for in files.
fn file_anchors() -> [&'static [u8]; 3] {
    [
        ANCHOR.as_bytes(),
        tcmalloc::ANCHOR.to_bytes(),
        mimalloc::ANCHOR.to_bytes(),
    ]
}

/// Finds the allocators of the kind that `identify` recognizes, in each object that defines `anchor`, a function that
/// all of them have. Searches the exported symbols first, then the symbol tables of files; an allocator in both is
/// listed once. `is_own_name` accepts the names of functions of that kind. Skips an allocator that calls another
/// allocator's functions instead of its own, because they do not know its state.
fn find_allocators_of_kind(
    identify: impl Fn(&ObjectSymbols<'_>) -> Option<Allocator>,
    anchor: &CStr,
    is_own_name: fn(&[u8]) -> bool,
    objects: &[LoadedObject],
    tables: &[ObjectSymbols<'_>],
) -> Vec<Allocator> {
    let exported = ObjectSymbols::of_object_exporting(objects, anchor);
    let mut known = Vec::new();
    let mut is_new = |symbols: &&ObjectSymbols<'_>| {
        let address = symbols.function_address(anchor);
        let is_new = address.is_some() && !known.contains(&address);
        known.push(address);
        is_new
    };
    exported
        .iter()
        .chain(tables)
        .filter(|symbols| is_new(symbols))
        .filter(|symbols| is_self_contained(symbols, anchor, is_own_name))
        .filter_map(identify)
        .collect()
}

/// Whether an allocator calls only its own functions. `anchor` is the function by which its kind is recognized, and
/// `is_own_name` accepts the names of the kind's functions. Logs a warning if another library's function is called
/// instead.
fn is_self_contained(
    symbols: &ObjectSymbols<'_>,
    anchor: &CStr,
    is_own_name: fn(&[u8]) -> bool,
) -> bool {
    let address = symbols.function_address(anchor);
    let interposed = address.and_then(|address| find_interposed_function(address, is_own_name));
    if let Some(name) = &interposed {
        log::warn!(
            "the allocator of {} is left alone: its {name} is replaced by another library's",
            symbols.path().display()
        );
    }
    interposed.is_none()
}

/// Whether a function name is that of a control function of jemalloc, with or without a prefix.
fn is_jemalloc_function(name: &[u8]) -> bool {
    let known = [ANCHOR, "mallctlnametomib", "mallctlbymib", STATS_PRINT];
    known.iter().any(|known| name.ends_with(known.as_bytes()))
}

/// Whether a symbol may belong to an allocator. Must be fast, because it is called for each symbol of the process.
fn is_allocator_symbol(name: &[u8]) -> bool {
    let is_of_jemalloc = || {
        let mut known = SIBLINGS.iter().chain([&ANCHOR]);
        known.any(|known| name.ends_with(known.as_bytes()))
    };
    let is_name = |known: &&CStr| known.to_bytes() == name;
    // One search rules out nearly all symbols: all names in `SIBLINGS`, and `ANCHOR`, contain "mall".
    memmem::find(name, b"mall").is_some() && is_of_jemalloc()
        || tcmalloc::NAMES.iter().any(is_name)
        || mimalloc::NAMES.iter().any(is_name)
}

/// Collects every distinct jemalloc, from the most trustworthy source to the least: the host, exported symbols, symbols
/// of files. `host` is `None` if the host passed no jemalloc. If several sources have the same `mallctl`, the first one
/// counts; a later one only adds a missing prefix.
fn jemalloc_candidates(
    host: Option<Mallctl>,
    objects: &[LoadedObject],
    tables: &[ObjectSymbols<'_>],
) -> Vec<JemallocCandidate> {
    let from_host =
        host.map(|mallctl| JemallocCandidate::new(mallctl, FoundBy::Host, None, objects));
    let by_dlsym = PREFIXES.iter().filter_map(|prefix| {
        let anchor = CString::new(format!("{prefix}{ANCHOR}")).ok()?;
        jemalloc_candidate_with_prefix(
            &ObjectSymbols::of_object_exporting(objects, &anchor)?,
            prefix,
            objects,
        )
    });
    let by_table = tables.iter().flat_map(|symbols| {
        let prefixes = symbols.names().filter_map(|name| name.strip_suffix(ANCHOR));
        prefixes
            .filter(|prefix| has_jemalloc_sibling(symbols, prefix))
            .filter_map(|prefix| jemalloc_candidate_with_prefix(symbols, prefix, objects))
    });

    let mut found: Vec<JemallocCandidate> = Vec::new();
    for candidate in from_host.into_iter().chain(by_dlsym).chain(by_table) {
        match found
            .iter_mut()
            .find(|known| known.mallctl.address() == candidate.mallctl.address())
        {
            Some(known) => known.prefix = known.prefix.take().or(candidate.prefix),
            None => found.push(candidate),
        }
    }
    found
}

/// Whether the object has another of jemalloc's symbols with this prefix. A function named like [`ANCHOR`] alone may
/// belong to other code.
fn has_jemalloc_sibling(symbols: &ObjectSymbols<'_>, prefix: &str) -> bool {
    symbols
        .names()
        .filter_map(|name| name.strip_prefix(prefix))
        .any(|name| SIBLINGS.contains(&name))
}

/// Creates a candidate for the jemalloc whose symbols have this prefix. `None` if the object has no function `mallctl`
/// with the prefix.
fn jemalloc_candidate_with_prefix(
    symbols: &ObjectSymbols<'_>,
    prefix: &str,
    objects: &[LoadedObject],
) -> Option<JemallocCandidate> {
    let address = |name: &str| {
        let name = CString::new(format!("{prefix}{name}")).ok()?;
        symbols.function_address(&name)
    };
    // SAFETY: the loaded object defines this code as the function of jemalloc(3), which gives the type.
    let mallctl = unsafe { as_function(address(ANCHOR)?) };
    // SAFETY: the loaded object defines this code as the function of jemalloc(3), which gives the type.
    let stats_print = address(STATS_PRINT).map(|address| unsafe { as_function(address) });
    // SAFETY: both functions share one prefix and one object, which `ObjectSymbols` keeps loaded.
    let mallctl = unsafe { Mallctl::new(mallctl, stats_print) };
    let prefix = Some(prefix.to_owned());
    Some(JemallocCandidate::new(
        mallctl,
        symbols.found_by(),
        prefix,
        objects,
    ))
}

impl JemallocCandidate {
    /// Creates a candidate. `prefix` is `None` if it is unknown. Omits `malloc_stats_print` if it is in another object
    /// than `mallctl`, or calls another allocator's functions: that allocator may lack a mallctl, and jemalloc would
    /// abort the process.
    fn new(
        mallctl: Mallctl,
        found_by: FoundBy,
        prefix: Option<String>,
        objects: &[LoadedObject],
    ) -> Self {
        let interposed = mallctl.stats_print_function().and_then(|print| {
            let print = print as usize;
            let object = objects.iter().find(|object| object.contains_code_at(print));
            if object.is_some_and(|object| !object.contains_code_at(mallctl.address())) {
                // The two functions belong to different libraries, so `mallctl` counts as replaced.
                return Some(ANCHOR.to_owned());
            }
            find_interposed_function(print, is_jemalloc_function)
        });
        Self {
            mallctl: if interposed.is_some() {
                mallctl.without_stats_print()
            } else {
                mallctl
            },
            found_by,
            prefix,
            interposed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_without_allocator_is_searched_once() {
        let objects = loaded_objects::list_loaded_objects();
        let libc = objects
            .iter()
            .find(|object| object.path.ends_with("libc.so.6"));
        let mut objects = [libc.unwrap().clone()];
        let check = |objects: &[LoadedObject], known: &[u64], expected: &[u64]| {
            let (tables, without_allocators) = read_allocator_symbols(objects, known);
            assert_eq!((tables.len(), without_allocators.as_slice()), (0, expected));
        };
        let without_allocators = [objects[0].fingerprint()];
        check(&objects, &[], &without_allocators);
        check(&objects, &without_allocators, &without_allocators);
        // A file that cannot be read is searched again the next time, unless its fingerprint is known.
        objects[0].path = "/no/such/file".into();
        check(&objects, &without_allocators, &[]);
        let without_allocators = [objects[0].fingerprint()];
        check(&objects, &without_allocators, &without_allocators);
    }
}
