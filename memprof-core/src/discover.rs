//! Finding every jemalloc in the process.
//!
//! A first-match `dlsym` is wrong: a preloaded jemalloc beside a Rust host with its own one
//! answers `dlsym` and holds nothing of the host's heap. So every candidate is collected: the
//! host's own pointers, the dynamic symbols, the symbol tables of the program and of each loaded
//! object, without this image's.
#![expect(
    unsafe_code,
    reason = "the allocator calls, and addresses out of symbol tables"
)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, ptr};

use memchr::memmem;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Object, ObjectSymbol, ObjectSymbolTable};

use crate::backend::Backend;
use crate::jemalloc::identify;
use crate::mallctl::Mallctl;
use crate::objects::{self, EXECUTABLE, LoadedObject};
use crate::stats::Readers;

/// How a jemalloc was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The host handed its functions over.
    Host,
    /// `dlsym` of the prefixed `mallctl`.
    DynamicSymbol,
    /// The symbol table of this file.
    SymbolTable(PathBuf),
}

impl fmt::Display for FoundBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::DynamicSymbol => f.write_str("dlsym"),
            Self::SymbolTable(path) => write!(f, "symtab {}", path.display()),
        }
    }
}

/// Functions that may be a jemalloc's.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub mallctl: Mallctl,
    pub found_by: FoundBy,
    /// What the functions' names start with (`""`, `"_rjem_"`, `"je_"`); unknown when the host
    /// handed them over and no symbol table names them.
    pub prefix: Option<String>,
}

/// The prefixes that `dlsym` is asked for; symbol tables yield any prefix.
const PREFIXES: [&str; 3] = ["", "_rjem_", "je_"];
const LONGEST_NAME: &str = "mallctlnametomib";
const NAMES: [&str; 4] = [
    "mallctl",
    LONGEST_NAME,
    "mallctlbymib",
    "malloc_stats_print",
];

/// Every allocator in the process except one in the image that holds `own_image`.
pub(crate) fn discover(
    host: Option<Mallctl>,
    own_image: usize,
    readers: Readers,
) -> Vec<Arc<dyn Backend>> {
    candidates(host, own_image)
        .into_iter()
        .filter_map(|candidate| identify(candidate, readers))
        .map(|jemalloc| Arc::new(jemalloc) as Arc<dyn Backend>)
        .collect()
}

/// Every distinct candidate, in order of trust. `own_image` is an address inside the image that
/// must not be searched: the plugin's.
fn candidates(host: Option<Mallctl>, own_image: usize) -> Vec<Candidate> {
    let objects: Vec<_> = objects::loaded()
        .into_iter()
        .filter(|object| !object.contains(own_image))
        .collect();
    let from_host = host.map(|mallctl| Candidate {
        mallctl,
        found_by: FoundBy::Host,
        prefix: None,
    });
    let by_dlsym = PREFIXES
        .iter()
        .filter_map(|prefix| dynamic(prefix, &objects));
    let by_table = objects.iter().flat_map(in_symbol_tables);

    let mut found: Vec<Candidate> = Vec::new();
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

fn dynamic(prefix: &str, objects: &[LoadedObject]) -> Option<Candidate> {
    let address = |name: &str| -> Option<usize> {
        let name = CString::new(format!("{prefix}{name}")).ok()?;
        let address = lookup(&name);
        // Also keeps out symbols of our own image, which is not among the objects.
        objects
            .iter()
            .any(|object| object.is_code(address))
            .then_some(address)
    };
    let [a, b, c, d] = NAMES;
    let addresses = [address(a)?, address(b)?, address(c)?, address(d)?];
    Some(candidate(addresses, FoundBy::DynamicSymbol, prefix))
}

fn lookup(name: &CStr) -> usize {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

fn candidate(addresses: [usize; 4], found_by: FoundBy, prefix: &str) -> Candidate {
    let pointers = addresses.map(ptr::with_exposed_provenance);
    // SAFETY: callers checked that each address is code of a loaded object that names it as this
    // function of jemalloc(3); all four share one prefix and one object.
    let mallctl = unsafe { Mallctl::from_pointers(pointers) };
    Candidate {
        mallctl,
        found_by,
        prefix: Some(prefix.to_owned()),
    }
}

/// The candidates that the file of `object` names. A file that cannot be read, or that is not
/// the one that is mapped, names none: calling by its addresses would crash.
fn in_symbol_tables(object: &LoadedObject) -> Vec<Candidate> {
    let Ok(file) = File::open(&object.path) else {
        return Vec::new();
    };
    // SAFETY: read-only and private. Should another process truncate the file meanwhile, this
    // process loses its own mapping of it too.
    let Ok(bytes) = (unsafe { memmap2::Mmap::map(&file) }) else {
        return Vec::new();
    };
    let Ok(elf) = ElfFile64::<object::Endianness>::parse(&*bytes) else {
        return Vec::new();
    };
    if !is_mapped_from(object, &elf, &bytes) {
        log::debug!(
            "{} is not the file that is mapped; not searched",
            object.path.display()
        );
        return Vec::new();
    }
    let path = real_path(&object.path);
    [elf.symbol_table(), elf.dynamic_symbol_table()]
        .into_iter()
        .flatten()
        .flat_map(|table| in_table(&table, object, &path))
        .collect()
}

fn is_mapped_from(
    object: &LoadedObject,
    elf: &ElfFile64<'_, object::Endianness>,
    bytes: &[u8],
) -> bool {
    let header = elf.elf_header();
    let start = header.e_phoff(elf.endian()) as usize;
    let headers = bytes.get(start..start.saturating_add(object.headers.len()));
    headers == Some(&object.headers)
        && elf
            .build_id()
            .is_ok_and(|id| id == object.build_id.as_deref())
}

fn in_table<'data>(
    table: &impl ObjectSymbolTable<'data>,
    object: &LoadedObject,
    path: &Path,
) -> Vec<Candidate> {
    let mut functions: Vec<(&str, usize)> = Vec::new();
    for symbol in table.symbols().filter(|symbol| symbol.is_definition()) {
        let Ok(bytes) = symbol.name_bytes() else {
            continue;
        };
        if memmem::find(bytes, b"mall").is_none() {
            continue;
        }
        let Ok(name) = std::str::from_utf8(bytes) else {
            continue;
        };
        let address = object.bias.wrapping_add(symbol.address() as usize);
        if NAMES.iter().any(|known| name.ends_with(known)) && object.is_code(address) {
            functions.push((name, address));
        }
    }
    let address = |prefix: &str, name: &str| {
        let whole = |symbol: &str| symbol.strip_prefix(prefix) == Some(name);
        functions
            .iter()
            .find(|(symbol, _)| whole(symbol))
            .map(|(_, address)| *address)
    };
    functions
        .iter()
        .filter_map(|(name, _)| name.strip_suffix(LONGEST_NAME))
        .filter_map(|prefix| {
            let [a, b, c, d] = NAMES.map(|name| address(prefix, name));
            let found_by = FoundBy::SymbolTable(path.to_owned());
            Some(candidate([a?, b?, c?, d?], found_by, prefix))
        })
        .collect()
}

/// The file itself, for the program too.
pub(crate) fn real_path(path: &Path) -> PathBuf {
    if path != Path::new(EXECUTABLE) {
        return path.to_owned();
    }
    std::fs::read_link(path).unwrap_or_else(|_| path.to_owned())
}
