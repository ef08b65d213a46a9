//! Detects allocators with heaps that memprof cannot read, by what serves `malloc`, by functions and by texts.

mod foreign_memory;

use std::fs;
use std::ops::Range;

use memchr::memmem::find;
use memprof_ptrace::frame_memory::loaded_libraries;
use memprof_ptrace::library_image::LibraryImage;

use super::FoundHeap;
use crate::c_library::{has_file_name_prefix, is_c_library};
use crate::names::read_functions_of_file;
use crate::regions::Region;
use crate::snapshot::Registers;
use crate::snapshot_memory::{BLOCK_SIZE, SnapshotMemory};
use crate::unsearched::{Unsearched, UnsearchedAmount};
use foreign_memory::foreign_bytes;

/// Texts that every jemalloc 4 and 5 contains: the prefix of its error messages, and an option. A program
/// that only writes about jemalloc may contain one of them.
const JEMALLOC_TEXTS: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];
/// Bytes of memory outside of known heaps below which another allocator in the process counts as unused.
const MIN_FOREIGN_BYTES: u64 = 64 << 10;

/// Allocator that programs may contain besides that of the C library.
struct AllocatorSigns {
    name: &'static str,
    /// Parts of the names of its functions, as in the symbol table of a program that is linked with it.
    functions: &'static [&'static str],
    /// Part of a function name that shows that this allocator is not used; empty if there is none.
    absent: &'static str,
    /// Texts that its file contains, all of them; empty if none are known.
    texts: &'static [&'static [u8]],
}

const ALLOCATORS: [AllocatorSigns; 8] = [
    AllocatorSigns {
        name: "mimalloc",
        functions: &["mi_malloc", "mi_heap_malloc"],
        absent: "",
        texts: &[b"mimalloc: error: ", b"mimalloc_"],
    },
    AllocatorSigns {
        name: "tcmalloc",
        functions: &["tc_malloc", "TCMallocInternalMalloc"],
        absent: "",
        texts: &[b"tcmalloc: large alloc ", b"TCMALLOC_"],
    },
    AllocatorSigns {
        name: "snmalloc",
        functions: &["sn_rust_alloc", "sn_malloc", "8snmalloc"],
        absent: "",
        texts: &[],
    },
    AllocatorSigns {
        name: "rpmalloc",
        functions: &["rpmalloc", "rpaligned_alloc"],
        absent: "",
        texts: &[],
    },
    AllocatorSigns {
        name: "Hoard",
        functions: &["xxmalloc"],
        absent: "",
        texts: &[],
    },
    AllocatorSigns {
        name: "oneTBB's allocator",
        functions: &["scalable_malloc"],
        absent: "",
        texts: &[],
    },
    AllocatorSigns {
        name: "Scudo",
        functions: &["scudo_malloc", "5scudo9Allocator"],
        absent: "",
        texts: &[b"Scudo ERROR: "],
    },
    AllocatorSigns {
        // Without `#[global_allocator]`, `__rust_alloc` calls `__rdl_alloc`, which calls malloc.
        name: "a global allocator in Rust",
        functions: &["__rg_alloc", "__rust_alloc"],
        absent: "__rdl_alloc",
        texts: &[],
    },
];

impl AllocatorSigns {
    /// Names to search for in a file's symbol tables: functions of the allocator, and the function whose presence shows
    /// that the allocator is not used.
    fn function_names(&self) -> impl Iterator<Item = &&'static str> {
        let absent = Some(&self.absent).filter(|name| !name.is_empty());
        self.functions.iter().chain(absent)
    }
}

/// Allocator that serves `malloc`.
enum MallocProvider<'a> {
    /// The C library, in a file of its own.
    Libc,
    /// No loaded file is known to define `malloc`.
    Unknown,
    /// The program or a library, by its path.
    File(&'a str),
}

/// Heaps in a process that memprof cannot read, after the heaps that it can read were walked.
pub(super) struct UnsupportedHeaps {
    /// Reason why the process's own heap is not among the walked ones.
    pub(super) refusal: Option<String>,
    /// Other heaps.
    pub(super) parts: Vec<Unsearched>,
    /// Warning about memory in which there may be pools.
    pub(super) warning: Option<String>,
    /// Bytes of anonymous memory that neither heaps nor stacks explain.
    pub(super) foreign: u64,
    /// Whether the C library of a dynamic program serves its `malloc`.
    pub(super) is_of_libc: bool,
}

/// Finds allocators whose heaps were not walked. `walked` are the names of the allocators whose heaps were walked, and
/// `heap` is the result of these walks. The return value has a refusal if most objects would be missing; else it has
/// the parts of which no object is reported. If no allocator explains large other memory, it has a warning.
pub(super) fn find_unsupported_heaps(
    view: &SnapshotMemory,
    threads: &[Registers],
    walked: &[&str],
    heap: &FoundHeap,
) -> UnsupportedHeaps {
    let foreign = foreign_bytes(view, threads, heap);
    let has_jemalloc = walked.contains(&"jemalloc");
    let jemalloc = (!has_jemalloc).then(|| find_jemalloc_file(view)).flatten();
    let jemalloc_is_absent = jemalloc.is_none();
    let jemalloc =
        jemalloc.map(|file| format!("memprof cannot read the heap of the jemalloc in {file}"));
    // An allocator without memory of its own is present, but not used.
    let is_used = foreign >= MIN_FOREIGN_BYTES || walked.is_empty();
    let served_by = find_malloc_provider(view);
    let is_of_libc = matches!(served_by, MallocProvider::Libc);
    let server = match served_by {
        MallocProvider::File(path)
            if is_used && !(has_jemalloc && contains_jemalloc(view, path)) =>
        {
            Some(path)
        }
        _ => None,
    };
    let server = server.map(|path| path.rsplit('/').next().unwrap_or(path));
    let walked_bytes: u64 = heap
        .excluded
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    let refusal = match (&jemalloc, server) {
        (Some(jemalloc), _) if walked.is_empty() => Some(jemalloc.clone()),
        // Most objects would be missing from the result.
        (None, Some(name)) if foreign >= walked_bytes => Some(format!(
            "its malloc is that of {name}, whose heap memprof cannot read"
        )),
        _ => None,
    };
    let why = "none of its objects is reported";
    let mut parts: Vec<_> = jemalloc
        .into_iter()
        .map(|jemalloc| Unsearched::for_objects(None, jemalloc, why))
        .collect();
    let bytes = Some(UnsearchedAmount::Bytes(foreign));
    if let Some(name) = server {
        let what = format!("memory that may be the heap of the malloc in {name}");
        parts.push(Unsearched::for_objects(bytes, what, why));
    }
    if refusal.is_none() && parts.is_empty() && is_used {
        let others = find_other_allocators(view).into_iter();
        parts.extend(others.map(|(name, file)| {
            let what = format!("memory that may be the heap of {name} in {file}");
            Unsearched::for_objects(bytes, what, why)
        }));
    }
    let is_unexplained = parts.is_empty() && foreign >= walked_bytes.max(MIN_FOREIGN_BYTES);
    let warning = is_unexplained.then(|| {
        format!(
            "{} KiB of anonymous memory lie outside of these heaps: objects in a pool or heap of the program's own are \
             not reported",
            foreign >> 10
        )
    });
    UnsupportedHeaps {
        refusal,
        parts,
        warning,
        foreign,
        is_of_libc: is_of_libc && jemalloc_is_absent,
    }
}

/// Finds the file whose `malloc` the program calls: the first that defines it, in the order of the loader's list of
/// libraries. `Unknown` if no file does, or if there is no such list, as in a statically linked program.
fn find_malloc_provider(view: &SnapshotMemory) -> MallocProvider<'_> {
    let memory = view.copy_memory();
    let maps = fs::read(format!("/proc/{}/maps", view.copy_pid())).unwrap_or_default();
    let loaded = loaded_libraries(&memory, &maps).unwrap_or_default();
    let server = loaded.into_iter().find(|base| {
        let image = LibraryImage::read(&memory, *base);
        image.is_ok_and(|image| image.symbol_address("malloc").is_some())
    });
    let path = server.and_then(|base| view.region(base));
    match path.map(|region| region.name.as_str()) {
        Some(path) if !has_libc_malloc(path) => MallocProvider::File(path),
        Some(_) => MallocProvider::Libc,
        None => MallocProvider::Unknown,
    }
}

/// Whether the `malloc` of a file is that of the C library: glibc's main library, its loader, its library of malloc
/// checks (which calls glibc's malloc), or musl, by its name.
fn has_libc_malloc(path: &str) -> bool {
    let others: [&[u8]; 4] = [b"ld-linux", b"ld-2.", b"libc_malloc_debug", b"libc.so"];
    is_c_library(path.as_bytes()) || has_file_name_prefix(path.as_bytes(), &others)
}

/// Finds those of [`ALLOCATORS`] that the process contains: their names, each with the path of its file. The file is
/// the program if that has the allocator's functions or texts, or else a library that defines one of the functions.
/// Empty if no file is mapped.
fn find_other_allocators(view: &SnapshotMemory) -> Vec<(&'static str, &str)> {
    let Some(program) = program_file(view) else {
        return Vec::new();
    };
    let is_sign = |name: &str| {
        let mut signs = ALLOCATORS.iter().flat_map(AllocatorSigns::function_names);
        signs.any(|sign| name.contains(sign))
    };
    let functions = read_functions_of_file(view, program, is_sign);
    let memory = view.copy_memory();
    let libraries: Vec<_> = view
        .regions
        .iter()
        .filter(|region| region.is_file && region.offset == 0 && region.name != program)
        .filter_map(|region| {
            Some((
                region,
                LibraryImage::read(&memory, region.range.start).ok()?,
            ))
        })
        .collect();
    let found = ALLOCATORS.iter().filter_map(|signs| {
        let has = |sign: &str| functions.iter().any(|name| name.contains(sign));
        let has_function = signs.functions.iter().any(|sign| has(sign))
            && (signs.absent.is_empty() || !has(signs.absent));
        let has_texts = || {
            !signs.texts.is_empty()
                && signs
                    .texts
                    .iter()
                    .all(|text| file_contains(view, program, text))
        };
        if has_function || has_texts() {
            return Some((signs.name, program));
        }
        let defines = |image: &LibraryImage| {
            signs
                .functions
                .iter()
                .any(|sign| image.symbol_address(sign).is_some())
        };
        let library = libraries.iter().find(|(_, image)| defines(image));
        library.map(|(region, _)| (signs.name, region.name.as_str()))
    });
    found.collect()
}

/// Path of the file that contains a jemalloc: a library of that name, or else the program. `None` if neither does.
fn find_jemalloc_file(view: &SnapshotMemory) -> Option<&str> {
    let file = |region: &Region| region.is_file && region.name.contains("/libjemalloc");
    let library = view.regions.iter().find(|region| file(region));
    let library = library.map(|region| region.name.as_str());
    library.or_else(|| program_file(view).filter(|program| contains_jemalloc(view, program)))
}

/// Path of the program, whose mappings have the lowest addresses of all files. `None` if no file is mapped.
fn program_file(view: &SnapshotMemory) -> Option<&str> {
    let program = view.regions.iter().find(|region| region.is_file);
    program.map(|region| region.name.as_str())
}

/// Whether a file contains jemalloc, by texts in its constants or code.
fn contains_jemalloc(view: &SnapshotMemory, path: &str) -> bool {
    JEMALLOC_TEXTS
        .iter()
        .all(|text| file_contains(view, path, text))
}

/// Whether the constants or code of a file contain a text.
fn file_contains(view: &SnapshotMemory, path: &str, text: &[u8]) -> bool {
    let constants = view.regions.iter();
    let mut constants = constants.filter(|region| region.name == path && !region.is_writable);
    constants
        .any(|region| range_contains(&region.range, text, |start, block| view.read(start, block)))
}

/// Whether a range contains a text. `read` reads from an address and returns the number of bytes read. Does not
/// read beyond the range: a program may be mapped in tens of thousands of pieces.
fn range_contains(
    range: &Range<u64>,
    text: &[u8],
    mut read: impl FnMut(u64, &mut [u8]) -> usize,
) -> bool {
    let mut block = vec![0; BLOCK_SIZE];
    // Blocks overlap by the text's length, because it may lie across two.
    let mut starts = range.clone().step_by(BLOCK_SIZE - text.len());
    starts.any(|start| {
        let length = BLOCK_SIZE.min((range.end - start) as usize);
        let read = read(start, &mut block[..length]);
        find(&block[..read], text).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_contains_reads_nothing_beyond_range() {
        let check = |length: u64, position: u64, expected: bool| {
            let mut bytes = vec![0; length as usize + BLOCK_SIZE];
            bytes[position as usize..][..4].copy_from_slice(b"text");
            let read = |start: u64, block: &mut [u8]| {
                assert!(start + block.len() as u64 <= length, "{length} {start}");
                block.copy_from_slice(&bytes[start as usize..][..block.len()]);
                block.len()
            };
            assert_eq!(
                range_contains(&(0..length), b"text", read),
                expected,
                "{length}"
            );
        };
        let block = BLOCK_SIZE as u64;
        check(4096, 0, true);
        check(4096, 4092, true);
        check(4096, 4093, false);
        check(3 * block, block - 2, true);
        check(3 * block, 2 * block - 8, true);
        check(3 * block, 3 * block - 4, true);
        check(3 * block + 1, 3 * block, false);
    }

    #[test]
    fn libc_malloc_is_distinguished_from_other_files() {
        for (path, expected) in [
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", true),
            ("/lib/libc-2.31.so", true),
            ("/usr/lib/libc_malloc_debug.so.0", true),
            ("/usr/lib/libcurl.so.4", false),
            ("/srv/web", false),
        ] {
            assert_eq!(has_libc_malloc(path), expected, "{path}");
        }
    }
}
