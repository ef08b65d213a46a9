//! Frames of the files of one process, for later processes of the report that have the same files mapped.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::object_files::{CodeQuery, ObjectFile};
use super::search::Binary;
use crate::call_shape::CallShape;
use crate::names::{Frame, Names, StringId, Strings};
use crate::profile::FileOffset;

/// Most addresses that are kept; further ones are looked up again.
const MAX_ADDRESSES: usize = 1 << 20;
/// Most bytes of the names and paths that are kept.
const MAX_STRING_BYTES: usize = 64 << 20;

/// Device, inode, size, and time of the last change of a file.
type FileId = (u64, u64, u64, i64, i64);
/// Mount, device (major and minor) and inode of a directory. Mounts differ between mount namespaces.
type DirectoryId = (u64, u32, u32, u64);

/// Identity of a binary and of the root directory below which it and its debug file are found. A path and a build id do
/// not suffice: a process may have put a file of its own there, also by a mount in a mount namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BinaryId {
    file: FileId,
    root: DirectoryId,
}

impl BinaryId {
    /// Returns the identity by which the addresses of `file` in a binary can be looked up. `None` if the metadata of
    /// the binary or of its root directory cannot be read, or if the addresses have no offsets in the binary.
    pub(super) fn new(binary: &Binary, file: &ObjectFile<'_>) -> Option<Self> {
        let is_linked = file
            .mappings
            .first()
            .is_none_or(|mapping| mapping.has_linked_addresses());
        if !file.has_offsets || is_linked {
            return None;
        }
        Some(Self {
            file: file_id(&binary.file.metadata().ok()?),
            root: directory_id(binary.companions.root_of_binary())?,
        })
    }
}

/// Returns the identity of a directory. Does not ask the server of a remote file system, which may never answer. `None`
/// if the directory cannot be read, as /proc/PID/root of a process that has ended, and before Linux 5.8, which does not
/// number mounts.
fn directory_id(path: &Path) -> Option<DirectoryId> {
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let is_numbered = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    is_numbered.then_some((
        found.stx_mnt_id,
        found.stx_dev_major,
        found.stx_dev_minor,
        found.stx_ino,
    ))
}

/// Returns the identity of a file, which changes when the file is replaced or written to.
fn file_id(metadata: &Metadata) -> FileId {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    )
}

/// Frames that were read for one address of a file.
#[derive(Debug)]
struct KnownAddress {
    frames: Box<[Frame]>,
    shape: Option<CallShape>,
    /// Whether the shape of the call was looked up.
    is_near_leaf: bool,
}

impl KnownAddress {
    /// Returns whether the stored frames suffice for a query of this address. A query near the leaf of a stack also
    /// needs the call's shape, which may not have been looked up.
    fn suffices_for(&self, query: &CodeQuery) -> bool {
        self.is_near_leaf || !query.is_near_leaf
    }
}

/// A file whose addresses were looked up.
#[derive(Debug, Default)]
struct KnownFile {
    addresses: HashMap<FileOffset, KnownAddress>,
    /// Notes of the first process for which all addresses were looked up in time; `None` before.
    notes: Option<Vec<String>>,
}

/// Frames by file and offset.
#[derive(Debug, Default)]
pub(crate) struct KnownFrames {
    strings: Strings,
    string_bytes: usize,
    addresses: usize,
    files: HashMap<BinaryId, KnownFile>,
    /// Paths and build ids of these files.
    paths: HashSet<(String, Option<String>)>,
}

impl KnownFrames {
    /// Returns whether frames of a file with the same path and build id are known. Cheaper than a look-up by
    /// [`BinaryId`], but not certain: it may still be another file.
    pub(super) fn has_file(&self, file: &ObjectFile<'_>) -> bool {
        !self.paths.is_empty() && self.paths.contains(&path_and_build_id(file))
    }

    /// Returns the queries, addresses in the file `id`, for which frames, or a call shape that is needed, are not
    /// known.
    pub(super) fn unknown_queries(&self, id: &BinaryId, queries: &[CodeQuery]) -> Vec<CodeQuery> {
        let Some(file) = self.files.get(id) else {
            return queries.to_vec();
        };
        let is_unknown = |query: &&CodeQuery| {
            let known = file.addresses.get(&query.offset);
            known.is_none_or(|known| !known.suffices_for(query))
        };
        queries.iter().filter(is_unknown).copied().collect()
    }

    /// Returns the notes of the first process for which all addresses in the file `id` were looked up in time; empty if
    /// there is no such process.
    pub(super) fn file_notes(&self, id: &BinaryId) -> &[String] {
        let file = self.files.get(id);
        file.and_then(|file| file.notes.as_deref()).unwrap_or(&[])
    }

    /// Copies the frames and call shapes that are known of a file's addresses to `names`. Leaves addresses that have
    /// frames in `names` already.
    pub(super) fn copy_to(&self, id: &BinaryId, queries: &[CodeQuery], names: &mut Names) {
        let Some(file) = self.files.get(id) else {
            return;
        };
        for query in queries {
            let Some(known) = file.addresses.get(&query.offset) else {
                continue;
            };
            if !names.frames(query.id).is_empty() {
                continue;
            }
            let frames: Vec<_> = known
                .frames
                .iter()
                .map(|frame| {
                    let mut string = |id| names.strings.intern(self.strings.get(id));
                    with_replaced_string_ids(frame, &mut string)
                })
                .collect();
            names.set_frames(query.id, &frames);
            if let Some(shape) = known.shape {
                names.call_shapes.insert(query.id, shape);
            }
        }
    }

    /// Copies the frames of the addresses in a file from `names`, until a limit is reached. `is_late` says that the
    /// time for the file was over before all addresses were looked up: then those without frames are left out.
    pub(super) fn add_file(
        &mut self,
        id: BinaryId,
        object_file: &ObjectFile<'_>,
        notes: &[String],
        is_late: bool,
        names: &Names,
    ) {
        self.paths.insert(path_and_build_id(object_file));
        let file = self.files.entry(id).or_default();
        if !is_late {
            file.notes.get_or_insert_with(|| notes.to_vec());
        }
        for query in &object_file.queries {
            if self.addresses >= MAX_ADDRESSES || self.string_bytes >= MAX_STRING_BYTES {
                return;
            }
            let known = file.addresses.get(&query.offset);
            let is_missing = is_late && names.frames(query.id).is_empty();
            if is_missing || known.is_some_and(|known| known.suffices_for(query)) {
                continue;
            }
            let (strings, string_bytes) = (&mut self.strings, &mut self.string_bytes);
            let mut string = |id| {
                let known = strings.len();
                let text = names.strings.get(id);
                let kept = strings.intern(text);
                *string_bytes += if strings.len() > known { text.len() } else { 0 };
                kept
            };
            let frames = names.frames(query.id).iter();
            let address = KnownAddress {
                frames: frames
                    .map(|frame| with_replaced_string_ids(frame, &mut string))
                    .collect(),
                shape: names.call_shapes.get(&query.id).copied(),
                is_near_leaf: query.is_near_leaf,
            };
            let replaced = file.addresses.insert(query.offset, address);
            self.addresses += usize::from(replaced.is_none());
        }
    }
}

/// Returns a copy of the frame in which `string` has replaced the id of each string, to move the frame to another table
/// of strings.
fn with_replaced_string_ids(frame: &Frame, string: &mut impl FnMut(StringId) -> StringId) -> Frame {
    Frame {
        function: string(frame.function),
        linkage: frame.linkage.map(&mut *string),
        file: frame.file.map(&mut *string),
        ..*frame
    }
}

fn path_and_build_id(file: &ObjectFile<'_>) -> (String, Option<String>) {
    (file.path.to_owned(), file.build_id.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Address;
    use crate::stacks::AddressId;

    const ID: BinaryId = BinaryId {
        file: (1, 2, 3, 4, 5),
        root: (1, 1, 0, 2),
    };

    /// A file with these addresses, each with its id; in the second process they have others.
    fn file(offsets: &[u64], first_id: u32, is_near_leaf: bool) -> ObjectFile<'static> {
        let query = |(offset, id): (&u64, u32)| CodeQuery {
            address: Address(0x7000 + offset),
            offset: FileOffset(*offset),
            id: AddressId(id),
            is_near_leaf,
        };
        ObjectFile {
            path: "/bin/server",
            is_main: true,
            has_offsets: true,
            queries: offsets.iter().zip(first_id..).map(query).collect(),
            ..ObjectFile::default()
        }
    }

    /// Names of a process in which the address 0 is in `serve`, and no other one has a name.
    fn names() -> Names {
        let mut names = Names::default();
        names.strings.intern("of this process alone");
        let frame = Frame {
            function: names.strings.intern("serve"),
            linkage: None,
            file: Some(names.strings.intern("server.c")),
            line: 7,
            named: true,
        };
        names.set_frames(AddressId(0), &[frame]);
        names
    }

    #[test]
    fn root_of_another_mount_is_another_directory() {
        let root = directory_id(Path::new("/"));
        assert_eq!(root, directory_id(Path::new("/proc/self/root")));
        assert_ne!(root, directory_id(Path::new("/proc")));
        assert_eq!(directory_id(Path::new("/proc/self/none")), None);
    }

    #[test]
    fn frames_of_one_process_are_those_of_the_next() {
        let mut known = KnownFrames::default();
        let notes = ["it is stripped".to_owned()];
        let first = file(&[0x10, 0x20], 0, false);
        assert!(!known.has_file(&first));
        known.add_file(ID, &first, &notes, false, &names());
        let second = file(&[0x20, 0x10, 0x30], 5, false);
        assert!(known.has_file(&second));
        let offsets = |id: &BinaryId, file: &ObjectFile<'_>| {
            let unknown = known.unknown_queries(id, &file.queries);
            let offsets = unknown.iter().map(|query| query.offset.0);
            offsets.collect::<Vec<_>>()
        };
        assert_eq!(offsets(&ID, &second), [0x30]);
        // Another file at that path; addresses whose calls were not read.
        let other = BinaryId {
            file: (1, 9, 3, 4, 5),
            ..ID
        };
        assert_eq!(offsets(&other, &second), [0x20, 0x10, 0x30]);
        assert_eq!(offsets(&ID, &file(&[0x10], 5, true)), [0x10]);
        assert_eq!(known.file_notes(&ID), notes);
        let mut names = Names::default();
        known.copy_to(&ID, &second.queries, &mut names);
        let [frame] = names.frames(AddressId(6)) else {
            panic!("{names:?}");
        };
        let text = |id| names.strings.get(id);
        let found = (text(frame.function), frame.file.map(text), frame.line);
        assert_eq!(found, ("serve", Some("server.c"), 7));
        assert_eq!(names.frames(AddressId(5)), []);
    }

    #[test]
    fn address_that_is_read_again_counts_once() {
        let mut known = KnownFrames::default();
        for is_near_leaf in [false, true] {
            let file = file(&[0x10, 0x20], 0, is_near_leaf);
            known.add_file(ID, &file, &[], false, &names());
            assert_eq!(known.addresses, 2, "{is_near_leaf}");
        }
    }

    #[test]
    fn names_that_came_too_late_are_looked_up_again() {
        let mut known = KnownFrames::default();
        let file = file(&[0x10, 0x20], 0, false);
        known.add_file(ID, &file, &[], true, &names());
        let unknown = known.unknown_queries(&ID, &file.queries);
        assert_eq!(unknown.len(), 1);
        assert_eq!(unknown[0].offset, FileOffset(0x20));
    }
}
