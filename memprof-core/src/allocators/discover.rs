//! Finding every allocator of the process.
//!
//! A first-match `dlsym` is wrong: a preloaded jemalloc beside a Rust host with its own one
//! answers `dlsym` and holds nothing of the host's heap. So every candidate is collected: the
//! host's own pointers, the dynamic symbols, the symbol tables of the program and of each loaded
//! object, without this image's.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, CString};
use std::path::PathBuf;

use memchr::memmem;

use crate::allocators::allocator::Allocator;
use crate::allocators::glibc::{self, Glibc};
use crate::allocators::interposed::interposed;
use crate::allocators::jemalloc::{JemallocCandidate, identify};
use crate::allocators::loaded_objects::{self, LoadedObject};
use crate::allocators::mallctl::Mallctl;
use crate::allocators::mimalloc::{self, Mimalloc};
use crate::allocators::stats::Readers;
use crate::allocators::symbols::{self, ObjectSymbols, as_function};
use crate::allocators::tcmalloc::{self, Tcmalloc};
use crate::identity::FoundBy;

/// The prefixes that `dlsym` is asked for; symbol tables yield any prefix.
const PREFIXES: [&str; 3] = ["", "_rjem_", "je_"];
/// What a jemalloc is found by. It calls this one itself, so the linker never leaves it out.
const ANCHOR: &str = "mallctl";
const STATS_PRINT: &str = "malloc_stats_print";
/// Some function of the program may be called like the anchor; beside jemalloc's stands one of
/// these, with the same prefix. The linker leaves out all but the variable where nothing uses them.
const SIBLINGS: [&str; 6] = [
    "malloc_conf",
    "malloc_message",
    "mallocx",
    "mallctlnametomib",
    "mallctlbymib",
    STATS_PRINT,
];

/// The allocators of a process.
#[derive(Debug)]
pub(crate) struct Discovered {
    /// The ones with a profiler first.
    pub allocators: Vec<Allocator>,
    /// The file whose `malloc` serves the process, where that is none of them.
    pub stranger: Option<PathBuf>,
    /// The objects in whose files no allocator has a name, by their fingerprints, sorted.
    pub barren: Vec<u64>,
}

/// Every allocator in the process except one in the image that holds `own_image`. Objects that are `known` to be
/// barren are not searched again.
pub(crate) fn discover(
    host: Option<Mallctl>,
    own_image: usize,
    readers: Readers,
    known: &[u64],
) -> Discovered {
    let objects: Vec<_> = loaded_objects::loaded()
        .into_iter()
        .filter(|object| !object.contains(own_image))
        .collect();
    let (tables, barren) = search(&objects, known);
    let mut allocators: Vec<_> = candidates(host, &objects, &tables)
        .into_iter()
        .filter_map(|candidate| identify(candidate, readers))
        .map(Allocator::Jemalloc)
        .collect();
    let identify =
        |symbols: &ObjectSymbols<'_>| Tcmalloc::identify(symbols).map(Allocator::Tcmalloc);
    let is_own = tcmalloc::is_own_name;
    allocators.extend(identify_all(
        identify,
        tcmalloc::ANCHOR,
        is_own,
        &objects,
        &tables,
    ));
    let identify =
        |symbols: &ObjectSymbols<'_>| Mimalloc::identify(symbols).map(Allocator::Mimalloc);
    let is_own = mimalloc::is_own_name;
    allocators.extend(identify_all(
        identify,
        mimalloc::ANCHOR,
        is_own,
        &objects,
        &tables,
    ));
    let identify = |symbols: &ObjectSymbols<'_>| Glibc::identify(symbols).map(Allocator::Glibc);
    // Its calls of itself are bound when it is linked, but for malloc and its kin.
    allocators.extend(identify_all(
        identify,
        glibc::ANCHOR,
        |_| false,
        &objects,
        &tables,
    ));

    let is_known = allocators.iter().any(|each| each.identity().owns_malloc);
    let malloc = symbols::malloc().filter(|_| !is_known);
    let stranger = objects
        .iter()
        .find(|object| malloc.is_some_and(|malloc| object.is_code(malloc)));
    Discovered {
        stranger: stranger.map(|object| object.path.clone()),
        allocators,
        barren,
    }
}

/// The wanted symbols of each object's file, and the fingerprints of the objects that have none, sorted.
fn search<'a>(objects: &'a [LoadedObject], known: &[u64]) -> (Vec<ObjectSymbols<'a>>, Vec<u64>) {
    let (mut tables, mut barren) = (Vec::new(), Vec::new());
    for object in objects {
        let fingerprint = object.fingerprint();
        let found = match known.binary_search(&fingerprint) {
            Ok(_) => Ok(None),
            Err(_) => ObjectSymbols::in_file(object, &anchors(), is_wanted),
        };
        match found {
            Ok(Some(symbols)) => tables.push(symbols),
            Ok(None) => barren.push(fingerprint),
            // It may be readable the next time.
            Err(error) => log::debug!("{}: {error}", object.path.display()),
        }
    }
    barren.sort_unstable();
    (tables, barren)
}

/// Of each allocator that is wanted, a name that none of its kind is without.
fn anchors() -> [&'static [u8]; 3] {
    [
        ANCHOR.as_bytes(),
        tcmalloc::ANCHOR.to_bytes(),
        mimalloc::ANCHOR.to_bytes(),
    ]
}

/// The allocators of one kind: wherever `anchor`, which names each of them, is found. One that calls functions
/// of another allocator, where it means its own, is left alone: their state differs.
fn identify_all(
    identify: impl Fn(&ObjectSymbols<'_>) -> Option<Allocator>,
    anchor: &CStr,
    is_own_name: fn(&[u8]) -> bool,
    objects: &[LoadedObject],
    tables: &[ObjectSymbols<'_>],
) -> Vec<Allocator> {
    let exported = ObjectSymbols::exported(objects, anchor);
    let mut known = Vec::new();
    let mut is_new = |symbols: &&ObjectSymbols<'_>| {
        let address = symbols.function(anchor);
        let is_new = address.is_some() && !known.contains(&address);
        known.push(address);
        is_new
    };
    exported
        .iter()
        .chain(tables)
        .filter(|symbols| is_new(symbols))
        .filter(|symbols| is_whole(symbols, anchor, is_own_name))
        .filter_map(identify)
        .collect()
}

fn is_whole(symbols: &ObjectSymbols<'_>, anchor: &CStr, is_own_name: fn(&[u8]) -> bool) -> bool {
    let address = symbols.function(anchor);
    let interposed = address.and_then(|address| interposed(address, is_own_name));
    if let Some(name) = &interposed {
        log::warn!(
            "the allocator of {} is left alone: its {name} is replaced by another library's",
            symbols.path().display()
        );
    }
    interposed.is_none()
}

/// Whether a function is one of jemalloc's own that it calls by name, with any prefix.
fn is_jemallocs_own(name: &[u8]) -> bool {
    let known = [ANCHOR, "mallctlnametomib", "mallctlbymib", STATS_PRINT];
    known.iter().any(|known| name.ends_with(known.as_bytes()))
}

/// Whether a symbol may be an allocator's. Asked of each symbol of the process.
fn is_wanted(name: &[u8]) -> bool {
    let is_jemallocs = || {
        let mut known = SIBLINGS.iter().chain([&ANCHOR]);
        known.any(|known| name.ends_with(known.as_bytes()))
    };
    let is = |known: &&CStr| known.to_bytes() == name;
    memmem::find(name, b"mall").is_some() && is_jemallocs()
        || tcmalloc::NAMES.iter().any(is)
        || mimalloc::NAMES.iter().any(is)
}

/// Every distinct jemalloc, in order of trust.
fn candidates(
    host: Option<Mallctl>,
    objects: &[LoadedObject],
    tables: &[ObjectSymbols<'_>],
) -> Vec<JemallocCandidate> {
    let from_host =
        host.map(|mallctl| JemallocCandidate::new(mallctl, FoundBy::Host, None, objects));
    let by_dlsym = PREFIXES.iter().filter_map(|prefix| {
        let anchor = CString::new(format!("{prefix}{ANCHOR}")).ok()?;
        candidate(&ObjectSymbols::exported(objects, &anchor)?, prefix, objects)
    });
    let by_table = tables.iter().flat_map(|symbols| {
        let prefixes = symbols.names().filter_map(|name| name.strip_suffix(ANCHOR));
        prefixes
            .filter(|prefix| has_jemalloc_sibling(symbols, prefix))
            .filter_map(|prefix| candidate(symbols, prefix, objects))
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

fn has_jemalloc_sibling(symbols: &ObjectSymbols<'_>, prefix: &str) -> bool {
    symbols
        .names()
        .filter_map(|name| name.strip_prefix(prefix))
        .any(|name| SIBLINGS.contains(&name))
}

fn candidate(
    symbols: &ObjectSymbols<'_>,
    prefix: &str,
    objects: &[LoadedObject],
) -> Option<JemallocCandidate> {
    let address = |name: &str| {
        let name = CString::new(format!("{prefix}{name}")).ok()?;
        symbols.function(&name)
    };
    // SAFETY: code of a loaded object that names it as this function of jemalloc(3).
    let mallctl = unsafe { as_function(address(ANCHOR)?) };
    // SAFETY: as above.
    let stats_print = address(STATS_PRINT).map(|address| unsafe { as_function(address) });
    // SAFETY: both share one prefix and one object, which `ObjectSymbols` keeps loaded.
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
    /// Without `malloc_stats_print` where that would ask another allocator for its figures: a control that the
    /// other one lacks makes it end the process.
    fn new(
        mallctl: Mallctl,
        found_by: FoundBy,
        prefix: Option<String>,
        objects: &[LoadedObject],
    ) -> Self {
        let stranger = mallctl.stats_print().and_then(|print| {
            let print = print as usize;
            let home = objects.iter().find(|object| object.is_code(print));
            if home.is_some_and(|home| !home.is_code(mallctl.address())) {
                return Some(ANCHOR.to_owned());
            }
            interposed(print, is_jemallocs_own)
        });
        Self {
            mallctl: if stranger.is_some() {
                mallctl.without_stats_print()
            } else {
                mallctl
            },
            found_by,
            prefix,
            interposed: stranger,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_an_allocators_name_is_searched_once() {
        let objects = loaded_objects::loaded();
        let libc = objects
            .iter()
            .find(|object| object.path.ends_with("libc.so.6"));
        let mut objects = [libc.unwrap().clone()];
        let check = |objects: &[LoadedObject], known: &[u64], expected: &[u64]| {
            let (tables, barren) = search(objects, known);
            assert_eq!((tables.len(), barren.as_slice()), (0, expected));
        };
        let barren = [objects[0].fingerprint()];
        check(&objects, &[], &barren);
        check(&objects, &barren, &barren);
        // Its file cannot be read: it is left to the next time, unless it needs no search.
        objects[0].path = "/no/such/file".into();
        check(&objects, &barren, &[]);
        let barren = [objects[0].fingerprint()];
        check(&objects, &barren, &barren);
    }
}
