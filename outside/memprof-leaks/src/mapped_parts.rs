//! Parts of a process's private memory outside of the walked heaps: runtimes' heaps, stacks, variables. Each is proven
//! by a name of the kernel's, a header in memory or a table of the runtime's; the rest is not known.

mod aligned_blocks;
mod go;
mod java;
mod segments;
mod thread_stacks;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::ops::Range;

use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use rangemap::RangeMap;

use crate::error::Error;
use crate::residency::{HeapResidency, ResidentRuns};
use crate::resident_pages::find_resident_anonymous_pages;
use crate::snapshot::smaps::{self, MappingUsage};

/// Part of the private memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedPart {
    /// Name for people, e.g. `Java heap`.
    pub owner: String,
    /// Kind of its memory.
    pub kind: MappedPartKind,
    /// Resident bytes; 0 for memory that RSS does not contain.
    pub resident: u64,
    /// Bytes of its address ranges.
    pub mapped: u64,
}

/// Kind of a part of the private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MappedPartKind {
    /// Objects of a language runtime, which no `malloc` served.
    LanguageHeap,
    /// Code that a runtime has compiled.
    CompiledCode,
    /// Stacks of threads.
    ThreadStacks,
    /// Variables of the program and its libraries, and other changed pages of files.
    Variables,
    /// The part of the mapping `[heap]`, which `malloc` extends by brk(2), that no heap walk explains.
    Brk,
    /// Mappings that the process has named (`PR_SET_VMA_ANON_NAME`).
    Named,
    /// Tables of memprof's sampler.
    Memprof,
    /// Anonymous memory of which nothing is known.
    NotKnown,
    /// Huge pages of hugetlbfs, which RSS does not contain.
    HugePages,
    /// Memory of devices, e.g. of a GPU, which RSS does not contain.
    Device,
}

/// Owner of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MemoryOwner {
    kind: MappedPartKind,
    name: String,
}

/// Address range whose owner is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryClaim {
    range: Range<u64>,
    /// `None` for the walked heaps, which are parts of their own.
    owner: Option<MemoryOwner>,
}

/// A process's mappings and the means to read them.
#[derive(Debug)]
struct AddressSpace {
    pid: u32,
    maps: Vec<u8>,
    usage: Vec<MappingUsage>,
    memory: Memory,
    pagemap: File,
}

/// Finders of claims, the most certain first: where two overlap, the first counts.
const FINDERS: [fn(&AddressSpace) -> Vec<MemoryClaim>; 5] = [
    segments::find_file_segments,
    java::find_heap_and_code,
    go::find_arenas,
    thread_stacks::find_stacks,
    aligned_blocks::find_blocks,
];

/// Divides the private memory of a process outside of the walked heaps into parts by owner, without stopping the
/// process. The parts are sorted by their resident bytes, the largest first; those that RSS contains sum to its private
/// memory without the heaps. If `walked` is `None`, no heap was walked: then the memory of the heaps is in the parts,
/// too.
///
/// # Errors
/// `Io`: /proc/PID/smaps or the memory cannot be read; `Refused`: a page of the memory did not arrive in time.
pub fn find_mapped_parts(
    pid: u32,
    walked: Option<&HeapResidency>,
) -> Result<Vec<MappedPart>, Error> {
    let path = |name: &str| format!("/proc/{pid}/{name}");
    let read = |name: &str| fs::read(path(name)).map_err(Error::with_action(path(name)));
    let space = AddressSpace {
        pid,
        maps: read("maps")?,
        usage: smaps::parse_smaps(&read("smaps")?).map_err(Error::with_action(path("smaps")))?,
        memory: Memory::open_by_child(pid).map_err(Error::with_action(path("mem")))?,
        pagemap: File::open(path("pagemap")).map_err(Error::with_action(path("pagemap")))?,
    };
    let heaps = walked.map_or(&[][..], |walked| &walked.ranges);
    let heaps = heaps.iter().map(|range| MemoryClaim {
        range: range.clone(),
        owner: None,
    });
    let tables = walked.map_or(&[][..], |walked| &walked.sampler_tables);
    let tables = tables.iter().map(|range| {
        let name = "memprof's samples";
        MemoryClaim::new(range.clone(), MappedPartKind::Memprof, name)
    });
    let found = FINDERS.iter().flat_map(|find| find(&space));
    let claims: Vec<_> = heaps.chain(tables).chain(found).collect();
    space.memory.require_responsive_memory()?;
    Ok(divide_memory(&space, &claims))
}

/// Divides the private memory among the owners in the claims. The default owner of a mapping gets the memory that has
/// no claim, unless it was never touched. Omits parts without resident memory, except for parts that RSS never
/// contains.
fn divide_memory(space: &AddressSpace, claims: &[MemoryClaim]) -> Vec<MappedPart> {
    let owners = owners_by_address(claims);
    let mut parts = HashMap::new();
    for mapping in mappings(&space.maps).filter(|mapping| mapping.access[3] == b'p') {
        let runs = space.resident_runs(&mapping.range);
        let mut add = |owner: MemoryOwner, range: Range<u64>| {
            let [mapped, resident]: &mut [u64; 2] = parts.entry(owner).or_default();
            *mapped += range.end - range.start;
            *resident += runs.bytes_in(&range);
        };
        for (claimed, owner) in owners.overlapping(&mapping.range) {
            if let Some(owner) = owner {
                add((*owner).clone(), intersection(claimed, &mapping.range));
            }
        }
        let rest: Vec<_> = owners.gaps(&mapping.range).collect();
        // Memory that was never touched has no part of its own.
        if rest.iter().any(|range| runs.bytes_in(range) > 0) {
            let owner = default_owner(&mapping);
            rest.into_iter().for_each(|range| add(owner.clone(), range));
        }
    }
    for (kind, name, bytes) in memory_outside_rss(space) {
        let name = name.to_owned();
        let [mapped, _] = parts.entry(MemoryOwner { kind, name }).or_default();
        *mapped += bytes;
    }
    let parts = parts.into_iter();
    let parts = parts.map(|(owner, [mapped, resident])| MappedPart {
        owner: owner.name,
        kind: owner.kind,
        resident,
        mapped,
    });
    let mut parts: Vec<_> = parts
        .filter(|part| match part.kind.is_outside_rss() {
            true => part.mapped > 0,
            false => part.resident > 0,
        })
        .collect();
    parts.sort_by(|one, other| {
        let sizes = other.resident.cmp(&one.resident);
        sizes.then_with(|| one.owner.cmp(&other.owner))
    });
    parts
}

/// Owners of the claimed memory, by address; `None` for memory of a walked heap. Where claims overlap, the first
/// counts.
fn owners_by_address(claims: &[MemoryClaim]) -> RangeMap<u64, Option<&MemoryOwner>> {
    let claims = claims.iter().filter(|claim| !claim.range.is_empty());
    // A later entry of the map takes the place of earlier ones.
    claims
        .rev()
        .map(|claim| (claim.range.clone(), claim.owner.as_ref()))
        .collect()
}

/// Memory that RSS does not contain, huge pages of hugetlbfs and devices: kind, name and bytes of each, 0 if the
/// process has none.
fn memory_outside_rss(space: &AddressSpace) -> [(MappedPartKind, &'static str, u64); 2] {
    let huge = space.usage.iter().map(|usage| usage.huge_tlb).sum();
    // Only mapped files count: the kernel's own pages, e.g. [vvar], are marked as device memory, too.
    let files: HashSet<_> = mappings(&space.maps)
        .filter(|mapping| mapping.path.starts_with(b"/"))
        .map(|mapping| mapping.range)
        .collect();
    let devices = space.usage.iter().filter(|usage| usage.is_device);
    let devices = devices
        .filter(|usage| files.contains(&usage.range))
        .map(|usage| usage.range.end - usage.range.start)
        .sum();
    [
        (MappedPartKind::HugePages, "huge pages (hugetlbfs)", huge),
        (MappedPartKind::Device, "devices", devices),
    ]
}

/// Owner of a mapping's unclaimed memory, from the mapping's name in /proc/PID/maps.
fn default_owner(mapping: &Mapping<'_>) -> MemoryOwner {
    let path = String::from_utf8_lossy(mapping.path);
    let anonymous_name = path
        .strip_prefix("[anon:")
        .and_then(|name| name.strip_suffix(']'));
    let (kind, name) = match (&*path, anonymous_name) {
        (_, Some(name)) if name.contains("pthread stack") => {
            (MappedPartKind::ThreadStacks, thread_stacks::OWNER)
        }
        (_, Some(name)) => (MappedPartKind::Named, name.trim()),
        ("[stack]", _) => (MappedPartKind::ThreadStacks, thread_stacks::OWNER),
        ("[heap]", _) => (MappedPartKind::Brk, "[heap] (brk)"),
        _ if mapping.inode != 0 => (MappedPartKind::Variables, "changed pages of files"),
        _ => (MappedPartKind::NotKnown, "not known"),
    };
    MemoryOwner {
        kind,
        name: name.to_owned(),
    }
}

impl MappedPartKind {
    /// Whether RSS does not contain memory of this kind.
    pub fn is_outside_rss(self) -> bool {
        matches!(self, Self::HugePages | Self::Device)
    }
}

impl AddressSpace {
    /// Pages of a range that count as resident anonymous memory; none if the pagemap cannot be read.
    fn resident_runs(&self, range: &Range<u64>) -> ResidentRuns {
        ResidentRuns::new(find_resident_anonymous_pages(&self.pagemap, range).into_iter())
    }

    /// Word at an address; `None` if it cannot be read.
    fn read_word(&self, address: u64) -> Option<u64> {
        self.memory.read_u64(address).ok()
    }

    /// The `N` words from an address on; `None` if one of them cannot be read.
    fn read_words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let mut bytes = vec![0; N * 8];
        self.memory.read(address, &mut bytes).ok()?;
        Some(std::array::from_fn(|index| {
            let word = bytes[index * 8..][..8].try_into();
            u64::from_le_bytes(word.expect("eight bytes"))
        }))
    }

    /// Anonymous private mappings that may be read.
    fn anonymous_mappings(&self) -> impl Iterator<Item = Mapping<'_>> {
        mappings(&self.maps).filter(|mapping| {
            mapping.inode == 0 && mapping.access[0] == b'r' && mapping.access[3] == b'p'
        })
    }

    /// Whether a file with code is mapped whose name `is_named` accepts.
    fn has_code_file(&self, is_named: impl Fn(&[u8]) -> bool) -> bool {
        let mut code = mappings(&self.maps).filter(Mapping::is_executable);
        code.any(|mapping| is_named(mapping.file_name()))
    }
}

impl MemoryClaim {
    /// Claims a range of addresses for an owner with this kind and name.
    fn new(range: Range<u64>, kind: MappedPartKind, name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            range,
            owner: Some(MemoryOwner { kind, name }),
        }
    }
}

/// Common part of two ranges; empty if they do not overlap.
fn intersection(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(line: &str) -> (MappedPartKind, String) {
        let mapping = mappings(line.as_bytes()).next().unwrap();
        let owner = default_owner(&mapping);
        (owner.kind, owner.name)
    }

    #[test]
    fn unclaimed_memory_belongs_to_its_mapping() {
        use MappedPartKind::{Brk, Named, NotKnown, ThreadStacks, Variables};
        let check = |path: &str, inode: u64, kind, name: &str| {
            let line = format!("1000-2000 rw-p 00000000 fe:01 {inode} {path}");
            assert_eq!(owner(&line), (kind, name.to_owned()), "{path}");
        };
        check("", 0, NotKnown, "not known");
        check("[heap]", 0, Brk, "[heap] (brk)");
        check("[stack]", 0, ThreadStacks, "thread stacks");
        check(
            "[anon: glibc: pthread stack: 7]",
            0,
            ThreadStacks,
            "thread stacks",
        );
        check("[anon:dalvik-main space]", 0, Named, "dalvik-main space");
        check("/srv/data [anon:x]", 7, Variables, "changed pages of files");
    }

    /// The first claim of an address counts, and what is in none is not known.
    #[test]
    fn memory_is_divided_by_claims() {
        const MIB: u64 = 1 << 20;
        let pid = std::process::id();
        let memory = vec![7_u8; 5 << 20];
        let start = (memory.as_ptr() as u64).next_multiple_of(4096);
        let at = |mebibytes: u64| start + mebibytes * MIB;
        let space = AddressSpace {
            pid,
            maps: format!("{start:x}-{:x} rw-p 00000000 00:00 0\n", at(4)).into_bytes(),
            usage: Vec::new(),
            memory: Memory::open(pid).unwrap(),
            pagemap: File::open("/proc/self/pagemap").unwrap(),
        };
        let heap = MemoryClaim {
            range: start..at(1),
            owner: None,
        };
        let java = |range| MemoryClaim::new(range, MappedPartKind::LanguageHeap, "Java heap");
        let claims = [heap, java(start..at(2)), java(at(3)..at(9))];
        let parts: Vec<_> = divide_memory(&space, &claims)
            .into_iter()
            .map(|part| (part.owner, part.resident, part.mapped))
            .collect();
        let expected = [("Java heap", 2 * MIB, 2 * MIB), ("not known", MIB, MIB)];
        assert_eq!(
            parts,
            expected.map(|(owner, resident, mapped)| (owner.to_owned(), resident, mapped))
        );
        assert!(memory.iter().all(|byte| *byte == 7));
    }
}
