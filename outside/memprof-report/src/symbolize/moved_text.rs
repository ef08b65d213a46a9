//! Attributes code to its file where other memory was mapped over it: programs copy their code to huge pages, and
//! some then map anonymous memory, a memfd or a file of hugetlbfs in its place.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use object::{Object as _, ObjectKind};

use super::Sources;
use super::image::Image;
use super::limited_file::LimitedFile;
use super::object_files::ObjectFile;
use super::regular_file::{READ_LIMIT, SearchPath, open_regular};
use super::search::{BinaryLookup, find_binary};
use crate::profile::{Address, Mapping, Profile};
use crate::stacks::AddressId;

/// Most files that are read for their headers.
const MAX_FILES: usize = 16;

/// Range of memory that no file explains, and the index of its mapping: `None` for a gap between mappings.
#[derive(Clone, Debug)]
struct UnexplainedRange {
    start: Address,
    end: Address,
    mapping: Option<usize>,
}

/// Restores the mappings of a file's code over which something else is mapped, as far as the profile has addresses
/// there. The file's program headers, found by `sources`, say which code it has. If they cannot be read, or `sources`
/// is `None`, the mappings before and after must be of one file, equally far from their offsets. Addresses that are
/// then in no file may be code of `sources.binary` at its linked addresses; that file becomes the profile's program.
///
/// Does nothing if mappings overlap, as in a profile that was merged from several: then an address has no one place.
pub(crate) fn restore_mappings(profile: &mut Profile, sources: Option<&Sources>) {
    let mut pairs = profile.mappings.windows(2);
    if pairs.any(|pair| pair[0].end > pair[1].start) {
        return;
    }
    let ranges = unexplained_ranges(profile);
    let unmapped = match sources {
        Some(sources) if !ranges.is_empty() => code_of_unmapped_binary(profile, sources),
        _ => Vec::new(),
    };
    let mut files = FileCode {
        profile,
        sources,
        known: HashMap::new(),
    };
    let mut restored = Vec::new();
    for range in &ranges {
        let mut code = files.code_mappings_in(range);
        if code.is_empty() {
            let unmapped = unmapped.iter().cloned();
            code.extend(unmapped.filter_map(|mapping| clip_to_range(mapping, range)));
        }
        restored.extend(code);
    }
    if let Some(binary) = unmapped.first() {
        let is_used = restored.iter().any(|mapping| mapping.path == binary.path);
        profile.program = is_used
            .then(|| binary.path.clone())
            .or(profile.program.take());
    }
    if restored.is_empty() {
        return;
    }
    let before = profile.mappings.clone();
    for mapping in restored {
        insert_mapping(&mut profile.mappings, mapping);
    }
    reassign_addresses(profile, &before);
}

/// Updates the profile's assignment of addresses to mappings after the mappings were changed. Does nothing if it has no
/// assignment. `before` are the mappings before the change, to which the indexes in the assignment refer.
fn reassign_addresses(profile: &mut Profile, before: &[Mapping]) {
    let Some(named) = profile.address_mappings.take() else {
        return;
    };
    let was_mapped = |call| {
        let after = before.partition_point(|mapping| mapping.start <= call);
        let found = after.checked_sub(1).map(|index| &before[index]);
        found.is_some_and(|mapping| mapping.contains(call))
    };
    let find = |(id, named): (AddressId, Option<u32>)| {
        let call = profile.stacks.call_address(id);
        let own = named.map(|index| &before[index as usize]);
        let found = match own {
            // The profile names no mapping here although there was one: the code is of another file.
            None if was_mapped(call) => None,
            // It may lie in a part of its mapping, or in code that was restored.
            _ if own.is_none_or(|own| own.contains(call)) => profile.mapping_of_address(call),
            own => profile.mapping_of_address(own?.start),
        };
        found.map(|index| index as u32)
    };
    let assigned = (0..).map(AddressId).zip(named).map(find).collect();
    profile.address_mappings = Some(assigned);
}

/// Returns the ranges that contain a call of the profile, although no file with code is mapped there: gaps between
/// mappings, and mappings that may hide a file's code. The file that is mapped before or after such a range may have
/// had its code in it. Ascending by address.
fn unexplained_ranges(profile: &Profile) -> Vec<UnexplainedRange> {
    let mut ranges = BTreeMap::new();
    let mut known = vec![None; profile.mappings.len()];
    let mut may_hide =
        |index: usize| *known[index].get_or_insert_with(|| may_hide_code(profile, index));
    for &Address(address) in profile.stacks.addresses() {
        // A frame is a return address, and the call lies before it.
        let call = Address(address.wrapping_sub(1));
        let mapping = profile.mapping_of_address(call);
        let (start, end) = match mapping {
            Some(index) if !may_hide(index) => continue,
            Some(index) => (profile.mappings[index].start, profile.mappings[index].end),
            None => gap_around(profile, call),
        };
        let range = UnexplainedRange {
            start,
            end,
            mapping,
        };
        ranges.insert(start, range);
    }
    ranges.into_values().collect()
}

/// Range between the mappings around an address that is in none. Without a mapping on one side, it reaches to the end
/// of the address space.
fn gap_around(profile: &Profile, address: Address) -> (Address, Address) {
    let after = profile.mappings.partition_point(|m| m.start <= address);
    let before = after
        .checked_sub(1)
        .map(|index| profile.mappings[index].end);
    let next = profile.mappings.get(after).map(|next| next.start);
    (
        before.unwrap_or(Address(0)),
        next.unwrap_or(Address(u64::MAX)),
    )
}

/// Returns whether a mapping may lie over the code of a file: it is memory, a deleted file, or a file between two
/// mappings of another one.
fn may_hide_code(profile: &Profile, index: usize) -> bool {
    let mapping = &profile.mappings[index];
    if !mapping.is_file() {
        let starts = ["//", "[anon"];
        return mapping.path.is_empty()
            || starts.iter().any(|start| mapping.path.starts_with(start));
    }
    let [before, after] =
        neighbouring_files(profile, mapping.start, mapping.end, Some(&mapping.path));
    let is_between = before
        .zip(after)
        .is_some_and(|(before, after)| before.path == after.path);
    is_between || mapping.is_memory_by_name() || mapping.path.ends_with(" (deleted)")
}

impl Mapping {
    /// Returns whether a file is memory that only has a name, as `/memfd:text (deleted)`.
    pub(crate) fn is_memory_by_name(&self) -> bool {
        const STARTS: [&str; 4] = ["/memfd:", "/anon_hugepage", "/dev/", "/SYSV"];
        STARTS.iter().any(|start| self.path.starts_with(start))
    }
}

/// Returns the nearest mapping of a file before a range and the nearest one after it; `None` if no file is mapped on a
/// side. Mappings of the file `other`, and of memory that only has a name, such as a memfd, do not count.
fn neighbouring_files<'p>(
    profile: &'p Profile,
    start: Address,
    end: Address,
    other: Option<&str>,
) -> [Option<&'p Mapping>; 2] {
    let is_neighbour = |mapping: &&Mapping| {
        let is_other = other != Some(mapping.path.as_str());
        mapping.is_file() && is_other && !mapping.is_memory_by_name()
    };
    let first = profile.mappings.partition_point(|m| m.start < start);
    let next = profile.mappings.partition_point(|m| m.start < end);
    let before = profile.mappings[..first].iter().rev().find(is_neighbour);
    let after = profile.mappings[next..].iter().find(is_neighbour);
    [before, after]
}

/// Code of the files of a profile, by their program headers.
struct FileCode<'p> {
    profile: &'p Profile,
    sources: Option<&'p Sources>,
    /// Mappings of a file's code by its path; empty if they are unknown.
    known: HashMap<&'p str, Vec<Mapping>>,
}

impl<'p> FileCode<'p> {
    /// Returns the mappings of code in a range: those of the file that is mapped before or after it. If neither file
    /// can be read, the range belongs to the file that is mapped on both sides. Empty if no file has code there.
    fn code_mappings_in(&mut self, range: &UnexplainedRange) -> Vec<Mapping> {
        let profile = self.profile;
        let own = range.mapping.map(|index| &profile.mappings[index]);
        let own = own.filter(|own| own.is_file()).map(|own| own.path.as_str());
        let [before, after] = neighbouring_files(profile, range.start, range.end, own);
        let is_one = before.map(|before| &before.path) == after.map(|after| &after.path);
        let files = before.into_iter().chain(after.filter(|_| !is_one));
        let mut is_read = false;
        for file in files {
            let code = self.code_mappings_of(file);
            is_read |= !code.is_empty();
            let code = code.iter().cloned();
            let code: Vec<_> = code.filter_map(|code| clip_to_range(code, range)).collect();
            if !code.is_empty() {
                return code;
            }
        }
        let between = before
            .zip(after)
            .filter(|_| !is_read)
            .and_then(|(before, after)| mapping_between(before, after));
        let between = between.and_then(|mapping| clip_to_range(mapping, range));
        between.into_iter().collect()
    }

    /// Mappings of a file's code. Empty if it cannot be read, if its load address is unclear, or if [`MAX_FILES`] other
    /// files were looked up before.
    fn code_mappings_of(&mut self, file: &'p Mapping) -> &[Mapping] {
        let is_full = self.known.len() == MAX_FILES;
        let (profile, sources) = (self.profile, self.sources);
        self.known.entry(&file.path).or_insert_with(|| {
            let sources = sources.filter(|_| !is_full);
            sources
                .and_then(|sources| read_code_mappings(file, profile, sources))
                .unwrap_or_default()
        })
    }
}

/// Reads the mappings of a file's code from its program headers. `None` if the file cannot be read, or its load
/// address is unclear.
fn read_code_mappings(
    file: &Mapping,
    profile: &Profile,
    sources: &Sources,
) -> Option<Vec<Mapping>> {
    let object_file = ObjectFile::new(&file.path, profile, sources);
    let machine = profile.origin.machine.as_deref();
    let Ok(BinaryLookup::Binary(binary)) = find_binary(&object_file, machine, sources) else {
        return None;
    };
    let cache = LimitedFile::new(&binary.file, READ_LIMIT);
    let image = Image::new(&object::File::parse(&cache).ok()?);
    let bias = image.bias(object_file.mappings.iter().copied())?;
    let code = image.code_mappings(bias, &file.path, file.build_id.as_deref());
    Some(code.collect())
}

/// Returns the code mappings of `sources.binary` at its linked addresses, those before relocation, as far as they
/// contain a call of the profile. Empty if no binary is given or it cannot be read. A position-independent binary,
/// whose addresses usually change when it is loaded, counts only if the profile has no mapping of its program.
fn code_of_unmapped_binary(profile: &Profile, sources: &Sources) -> Vec<Mapping> {
    let Some(path) = &sources.binary else {
        return Vec::new();
    };
    let found = open_regular(&SearchPath {
        root: PathBuf::new(),
        path: path.clone(),
    });
    let Some(file) = found else {
        return Vec::new();
    };
    let cache = LimitedFile::new(&file, READ_LIMIT);
    let Ok(elf) = object::File::parse(&cache) else {
        return Vec::new();
    };
    let main = profile.main_file().map(|main| main.path.clone());
    if elf.kind() != ObjectKind::Executable && main.is_some() {
        return Vec::new();
    }
    let path = main.unwrap_or_else(|| {
        let absolute = std::path::absolute(path);
        absolute
            .as_ref()
            .unwrap_or(path)
            .to_string_lossy()
            .into_owned()
    });
    let image = Image::new(&elf);
    let code = image.code_mappings(0, &path, None);
    let holds_call = |mapping: &Mapping| {
        let addresses = profile.stacks.addresses().iter();
        // A frame is a return address, and the call lies before it.
        let mut calls = addresses.map(|address| Address(address.0.wrapping_sub(1)));
        calls.any(|call| (mapping.start..mapping.end).contains(&call))
    };
    code.filter(holds_call).collect()
}

/// Returns a mapping for the range between two mappings, as if their file was mapped there, too. `None` unless both are
/// of one file, with one distance between address and offset.
fn mapping_between(before: &Mapping, after: &Mapping) -> Option<Mapping> {
    let distance = |mapping: &Mapping| mapping.start.0.wrapping_sub(mapping.offset);
    let is_one = before.path == after.path && distance(before) == distance(after);
    is_one.then(|| Mapping {
        start: before.end,
        end: after.start,
        offset: before.file_offset(before.end).0,
        executable: true,
        ..before.clone()
    })
}

/// Returns the part of a mapping in a range, with the file offset of its start. `None` if no part is in the range.
fn clip_to_range(mut mapping: Mapping, range: &UnexplainedRange) -> Option<Mapping> {
    let start = mapping.start.max(range.start);
    mapping.offset = mapping.offset.wrapping_add(start.0 - mapping.start.0);
    mapping.start = start;
    mapping.end = mapping.end.min(range.end);
    (mapping.start < mapping.end).then_some(mapping)
}

/// Inserts a mapping in place of the one that covers its range, whose parts before and after it stay. The mapping must
/// lie inside of one other mapping, or overlap none. `mappings` stay ascending.
fn insert_mapping(mappings: &mut Vec<Mapping>, inserted: Mapping) {
    let index = mappings.partition_point(|mapping| mapping.end <= inserted.start);
    let covered = mappings
        .get(index)
        .filter(|covered| covered.start < inserted.end)
        .cloned();
    let Some(covered) = covered else {
        mappings.insert(index, inserted);
        return;
    };
    let mut parts = Vec::new();
    if covered.start < inserted.start {
        parts.push(Mapping {
            end: inserted.start,
            ..covered.clone()
        });
    }
    let end = inserted.end;
    parts.push(inserted);
    if end < covered.end {
        parts.push(Mapping {
            start: end,
            offset: covered.offset.wrapping_add(end.0 - covered.start.0),
            ..covered
        });
    }
    mappings.splice(index..=index, parts);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, offset: u64, path: &str) -> Mapping {
        Mapping {
            start: Address(start),
            end: Address(end),
            offset,
            executable: true,
            path: path.to_owned(),
            build_id: None,
        }
    }

    /// A profile with one address, in the memory between the mappings of `/srv/app`.
    fn profile(before: u64, hidden: Option<&str>, after: u64) -> Profile {
        let mut profile = Profile {
            mappings: vec![mapping(0x40_0000, 0x40_1000, before, "/srv/app")],
            ..Profile::default()
        };
        let hidden = hidden.map(|path| mapping(0x40_1000, 0x40_2000, 0, path));
        profile.mappings.extend(hidden);
        let after = mapping(0x40_2000, 0x40_3000, after, "/srv/app");
        profile.mappings.push(after);
        let address = profile.stacks.intern_address(Address(0x40_1100));
        profile.stacks.push_frame(address);
        profile.stacks.finish_stack();
        profile
    }

    #[test]
    fn memory_between_parts_of_file_is_its_code() {
        let check = |hidden: Option<&str>, after: u64, expected: Option<u64>| {
            let mut profile = profile(0, hidden, after);
            restore_mappings(&mut profile, None);
            let index = profile.mapping_of_address(Address(0x40_10ff));
            let found = index.map(|index| &profile.mappings[index]);
            let found = found.filter(|found| found.path == "/srv/app");
            let offset = found.map(|found| found.file_offset(Address(0x40_10ff)).0);
            assert_eq!(offset, expected, "{hidden:?} {after:#x}");
        };
        let hidden = [
            Some(""),
            Some("/anon_hugepage (deleted)"),
            Some("/memfd:text (deleted)"),
            Some("/dev/hugepages/text"),
            Some("[anon:text]"),
            None,
        ];
        for hidden in hidden {
            check(hidden, 0x2000, Some(0x10ff));
            // Another distance: without the file's headers the offset of the code is unknown.
            check(hidden, 0x1000, None);
        }
        check(Some("//anon"), 0x2000, Some(0x10ff));
    }

    #[test]
    fn mapping_that_ends_before_its_start_may_come_before() {
        let before = mapping(0x2000, 0x1000, 0x1000, "/a");
        let between = mapping_between(&before, &mapping(0x5000, 0x6000, 0x4000, "/a"));
        let found = between.map(|found| (found.start.0, found.end.0, found.offset));
        assert_eq!(found, Some((0x1000, 0x5000, 0)));
    }

    #[test]
    fn mapping_is_split_by_inserted_one() {
        let check = |start: u64, end: u64, expected: &[(u64, u64, u64, &str)]| {
            let mut mappings = vec![
                mapping(0x1000, 0x2000, 0, "/a"),
                mapping(0x3000, 0x6000, 0x100, ""),
            ];
            insert_mapping(&mut mappings, mapping(start, end, 0x40, "/b"));
            let found: Vec<_> = mappings
                .iter()
                .map(|m| (m.start.0, m.end.0, m.offset, m.path.as_str()))
                .collect();
            assert_eq!(found[1..], *expected, "{start:#x}");
        };
        check(
            0x2000,
            0x3000,
            &[(0x2000, 0x3000, 0x40, "/b"), (0x3000, 0x6000, 0x100, "")],
        );
        check(
            0x4000,
            0x5000,
            &[
                (0x3000, 0x4000, 0x100, ""),
                (0x4000, 0x5000, 0x40, "/b"),
                (0x5000, 0x6000, 0x2100, ""),
            ],
        );
        check(0x3000, 0x6000, &[(0x3000, 0x6000, 0x40, "/b")]);
    }
}
