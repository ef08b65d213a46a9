//! The heap and the compiled code of a JVM, by the table of its variables that HotSpot exports for its serviceability
//! agent (`gHotSpotVMStructs`, vmStructs.hpp).

use std::collections::HashMap;
use std::ops::Range;

use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::mappings;

use super::{AddressSpace, MappedPartKind, MemoryClaim};

/// Most entries that are read: JDK 21 has some 2,000.
const MAX_ENTRIES: u64 = 20_000;
/// Most bytes of a name.
const NAME_LIMIT: usize = 64;

/// Fields of the table that are read, as type and name.
const FIELDS: [[&str; 2]; 6] = [
    ["Universe", "_collectedHeap"],
    ["CollectedHeap", "_reserved"],
    ["MemRegion", "_start"],
    ["MemRegion", "_word_size"],
    ["CodeCache", "_low_bound"],
    ["CodeCache", "_high_bound"],
];

/// Finds the heap and the compiled code of the JVM in a process. Leaves out each of the two whose bounds cannot be
/// read. Empty if the process has no libjvm.so, or the table of its variables cannot be read.
pub(super) fn find_heap_and_code(space: &AddressSpace) -> Vec<MemoryClaim> {
    let library = mappings(&space.maps)
        .find(|mapping| mapping.offset == 0 && mapping.file_name() == b"libjvm.so");
    let Some(library) = library else {
        return Vec::new();
    };
    let fields = read_field_locations(space, library.range.start).unwrap_or_default();
    let heap = heap_range(space, &fields);
    let heap = heap.map(|range| (range, MappedPartKind::LanguageHeap, "Java heap"));
    let code = code_range(space, &fields);
    let code = code.map(|range| (range, MappedPartKind::CompiledCode, "Java compiled code"));
    let found = heap.into_iter().chain(code);
    found
        .map(|(range, kind, name)| MemoryClaim::new(range, kind, name))
        .collect()
}

/// Address of a static field, or offset of another one, by type and name.
type FieldLocations = HashMap<[&'static str; 2], u64>;

/// Looks up [`FIELDS`] in HotSpot's `gHotSpotVMStructs`: the address of a static field, the offset of another one in
/// its object. `base` is the address of libjvm.so. The result lacks fields that the table lacks. `None` if the table
/// cannot be read, or has an impossible stride.
fn read_field_locations(space: &AddressSpace, base: u64) -> Option<FieldLocations> {
    let image = LibraryImage::read(&space.memory, base).ok()?;
    let variable = |name: &str| space.read_word(image.symbol_address(name)?);
    let entry = |field: &str| variable(&format!("gHotSpotVMStructEntry{field}"));
    let table = variable("gHotSpotVMStructs")?;
    let stride = entry("ArrayStride").filter(|stride| (8..=256).contains(stride))?;
    let [type_name, field_name, is_static, offset, address] = [
        entry("TypeNameOffset")?,
        entry("FieldNameOffset")?,
        entry("IsStaticOffset")?,
        entry("OffsetOffset")?,
        entry("AddressOffset")?,
    ];
    let mut locations = FieldLocations::new();
    // Adjacent entries share their names, so each name is read once.
    let mut names: HashMap<u64, Option<String>> = HashMap::new();
    for index in 0..MAX_ENTRIES {
        let at = table + index * stride;
        let [type_name, field_name] = [
            space.read_word(at + type_name)?,
            space.read_word(at + field_name)?,
        ];
        // The last entry is zero.
        if type_name == 0 {
            break;
        }
        let mut name = |address: u64| {
            let known = names.entry(address);
            known.or_insert_with(|| read_name(space, address)).clone()
        };
        let name = [name(type_name)?, name(field_name)?];
        let Some(field) = FIELDS.iter().find(|field| name == **field) else {
            continue;
        };
        let location = match space.read_word(at + is_static)? as u32 {
            0 => offset,
            _ => address,
        };
        locations.insert(*field, space.read_word(at + location)?);
        if locations.len() == FIELDS.len() {
            break;
        }
    }
    Some(locations)
}

/// Reads the text at an address up to its zero byte, at most [`NAME_LIMIT`] bytes; empty if it cannot be read. `None`
/// if it is not UTF-8.
fn read_name(space: &AddressSpace, address: u64) -> Option<String> {
    let mut bytes = [0; NAME_LIMIT];
    let read = space.memory.read_some(address, &mut bytes);
    let end = bytes[..read].iter().position(|byte| *byte == 0);
    let text = String::from_utf8(bytes[..end.unwrap_or(read)].to_vec());
    text.ok()
}

/// Addresses that the JVM has reserved for Java's objects; `None` for a collector that does not record them (ZGC), or
/// if they cannot be read.
fn heap_range(space: &AddressSpace, fields: &FieldLocations) -> Option<Range<u64>> {
    let field = |name: [&'static str; 2]| fields.get(&name).copied();
    let heap = space.read_word(field(["Universe", "_collectedHeap"])?)?;
    let reserved = heap.checked_add(field(["CollectedHeap", "_reserved"])?)?;
    let start = space.read_word(reserved.checked_add(field(["MemRegion", "_start"])?)?)?;
    let words = space.read_word(reserved.checked_add(field(["MemRegion", "_word_size"])?)?)?;
    let end = start.checked_add(words.checked_mul(8)?)?;
    (start > 0 && start < end).then_some(start..end)
}

/// Addresses of compiled code; `None` if the JVM's table lacks their bounds, these cannot be read, or are no range.
fn code_range(space: &AddressSpace, fields: &FieldLocations) -> Option<Range<u64>> {
    let [start, end] = ["_low_bound", "_high_bound"]
        .map(|name| space.read_word(*fields.get(&["CodeCache", name])?));
    let (start, end) = (start?, end?);
    (start > 0 && start < end).then_some(start..end)
}
