//! The mapped files of a profile, with the addresses in each.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Sources;
use super::call_shapes::addresses_near_leaves;
use crate::names::Names;
use crate::profile::{Address, FileOffset, Mapping, Profile};
use crate::stacks::AddressId;

/// A mapped file, with the addresses in it to symbolize.
#[derive(Default)]
pub(super) struct ObjectFile<'a> {
    pub(super) path: &'a str,
    pub(super) build_id: Option<&'a str>,
    pub(super) is_main: bool,
    /// Whether `Sources::binary` takes its place.
    pub(super) is_replaced: bool,
    /// Whether it was unloaded: the file that lies there now may be another one.
    pub(super) is_unloaded: bool,
    /// Whether the mappings have file offsets.
    pub(super) has_offsets: bool,
    /// Mappings of the file, ascending.
    pub(super) mappings: Vec<&'a Mapping>,
    pub(super) queries: Vec<CodeQuery>,
}

/// An address to symbolize, as the place of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeQuery {
    pub(super) address: Address,
    pub(super) offset: FileOffset,
    pub(super) id: AddressId,
    /// Whether it is near the leaf of a stack, where a wrapper of malloc may be.
    pub(super) is_near_leaf: bool,
}

impl<'a> ObjectFile<'a> {
    /// Collects the properties and the mappings of the mapped file at `path`, without addresses to symbolize.
    pub(super) fn new(path: &'a str, profile: &'a Profile, sources: &Sources) -> Self {
        let mappings = profile.mappings.iter();
        let mappings: Vec<_> = mappings.filter(|mapping| mapping.path == path).collect();
        let main = profile.main_file().map(|main| main.path.as_str());
        Self {
            path,
            build_id: mappings.first().and_then(|first| first.build_id.as_deref()),
            is_main: main == Some(path),
            is_replaced: path_replaced_by_binary(profile, sources) == Some(path),
            is_unloaded: false,
            has_offsets: profile.has_file_offsets,
            mappings,
            queries: Vec::new(),
        }
    }
}

/// Returns the path of the mapped file that the binary given by `sources` replaces: the main program if it has the
/// binary's file name, else a file with this name, else the main program. `None` if no binary is given, or the profile
/// maps no file.
fn path_replaced_by_binary<'a>(profile: &'a Profile, sources: &Sources) -> Option<&'a str> {
    let name = sources.binary.as_ref()?.file_name()?.to_str();
    let main = profile.main_file().map(|main| main.path.as_str());
    let is_named = |path: &&str| path.rsplit('/').next() == name;
    let files = profile.mappings.iter().filter(|mapping| mapping.is_file());
    let named = files.map(|mapping| mapping.path.as_str()).find(is_named);
    main.filter(is_named).or(named).or(main)
}

/// Groups the addresses that have no name by the mapped file that contains them, by path and build id. The file with
/// most addresses comes first. Leaves out addresses in no file, and files without such addresses.
pub(super) fn group_addresses_by_file<'a>(
    profile: &'a Profile,
    names: &Names,
    sources: &Sources,
) -> Vec<ObjectFile<'a>> {
    let main = profile.main_file().map(|mapping| mapping.path.as_str());
    let replaced = path_replaced_by_binary(profile, sources);
    let mut files: Vec<ObjectFile<'a>> = Vec::new();
    // A profile that was merged from several has versions of one file.
    let mut by_version = HashMap::new();
    let by_mapping: Vec<Option<usize>> = profile
        .mappings
        .iter()
        .map(|mapping| {
            mapping.is_file().then(|| {
                let path = mapping.path.as_str();
                let version = (path, mapping.build_id.as_deref(), mapping.is_unloaded());
                let index = *by_version.entry(version).or_insert_with(|| {
                    files.push(ObjectFile {
                        path,
                        build_id: mapping.build_id.as_deref(),
                        is_main: main == Some(path),
                        is_replaced: replaced == Some(path),
                        is_unloaded: mapping.is_unloaded(),
                        has_offsets: profile.has_file_offsets,
                        mappings: Vec::new(),
                        queries: Vec::new(),
                    });
                    files.len() - 1
                });
                files[index].mappings.push(mapping);
                index
            })
        })
        .collect();
    let leaves = addresses_near_leaves(&profile.stacks);
    for id in (0..profile.stacks.addresses().len() as u32).map(AddressId) {
        let Some(index) = profile
            .mapping_of_frame(id)
            .filter(|_| names.frames(id).is_empty())
        else {
            continue;
        };
        let (call, mapping) = (profile.stacks.call_address(id), &profile.mappings[index]);
        if let Some(file) = by_mapping[index].filter(|_| mapping.contains(call)) {
            files[file].queries.push(CodeQuery {
                address: call,
                offset: mapping.file_offset(call),
                id,
                is_near_leaf: leaves[id.0 as usize],
            });
        }
    }
    files.retain(|file| !file.queries.is_empty());
    // The largest first, so that the last ones are short and all cores finish at about the same time.
    files.sort_by_key(|file| Reverse(file.queries.len()));
    files
}

/// Returns a note that `sources.binary` is not read, because the profile has no address without a name in the file that
/// it replaces. `None` if it is read or not set, or if the profile has no addresses at all.
pub(super) fn unused_binary_note(
    files: &[ObjectFile<'_>],
    profile: &Profile,
    sources: &Sources,
) -> Option<String> {
    let binary = sources.binary.as_ref()?.display();
    let needs_names = !profile.stacks.addresses().is_empty();
    if !needs_names || files.iter().any(|file| file.is_replaced) {
        return None;
    }
    Some(match path_replaced_by_binary(profile, sources) {
        Some(path) => format!("{binary} names nothing: no address without a name lies in {path}"),
        None => format!("{binary} names nothing: the profile maps no file"),
    })
}
