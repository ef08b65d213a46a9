//! A copy of the loader's list of objects, made without allocating while the loader's lock is held.
//!
//! An allocation under that lock could deadlock: a sampled allocation walks the stack, and the unwinder may need a lock
//! (libunwind, which gperftools uses, does). Another thread may hold the unwinder's lock and wait for the loader's.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::slice;

use memprof_plugin_abi::raw::memprof_labels_t;

use libc::{Elf64_Phdr, PF_R, PT_LOAD, PT_NOTE, dl_phdr_info};

use super::{BUILD_ID, ForkGuard, LABELS, find_note};

const LABELS_SIZE: usize = size_of::<memprof_labels_t>();

/// Copy of the loader's list of objects, the program first.
#[derive(Debug, Default)]
pub(super) struct LoaderList {
    entries: Vec<ListEntry>,
    headers: Vec<Elf64_Phdr>,
    /// Paths and build ids of all objects.
    bytes: Vec<u8>,
    needed: ListCapacity,
}

/// Capacity that a copy of the list needs, in elements.
#[derive(Clone, Copy, Debug, Default)]
struct ListCapacity {
    entries: usize,
    headers: usize,
    bytes: usize,
}

#[derive(Debug)]
struct ListEntry {
    bias: usize,
    path: Range<usize>,
    headers: Range<usize>,
    build_id: Option<Range<usize>>,
    labels: Option<usize>,
}

/// One object of the list.
#[derive(Debug)]
pub(crate) struct ListedObject<'a> {
    pub bias: usize,
    /// Path in the loader's list; empty for the program.
    pub path: &'a [u8],
    pub headers: &'a [Elf64_Phdr],
    pub build_id: Option<&'a [u8]>,
    /// Address of a `memprof_labels_t`, if a note of the object gives one.
    pub labels: Option<usize>,
}

impl LoaderList {
    /// Copies the current list. Nothing may be allocated under the loader's lock, so memory is reserved before each
    /// round. Rounds repeat until the memory suffices.
    pub(super) fn capture() -> Self {
        let mut listing = Self::default();
        // The first round only measures. Further rounds are needed if objects are loaded in between.
        while !listing.is_complete() || listing.entries.is_empty() {
            listing.clear_and_reserve();
            visit_objects(&ForkGuard::acquire(), &mut |object| {
                listing.add_object(object);
            });
        }
        listing
    }

    /// Iterates over the copied objects, in the loader's order.
    pub(super) fn objects(&self) -> impl Iterator<Item = ListedObject<'_>> {
        self.entries.iter().map(|entry| ListedObject {
            bias: entry.bias,
            path: &self.bytes[entry.path.clone()],
            headers: &self.headers[entry.headers.clone()],
            build_id: entry.build_id.clone().map(|range| &self.bytes[range]),
            labels: entry.labels,
        })
    }

    /// Whether all objects of the last round were copied.
    fn is_complete(&self) -> bool {
        self.entries.len() == self.needed.entries
    }

    /// Clears the copy and the counts of the last round, and reserves the memory that the last round needed.
    fn clear_and_reserve(&mut self) {
        let needed = std::mem::take(&mut self.needed);
        self.entries.clear();
        self.headers.clear();
        self.bytes.clear();
        self.entries.reserve(needed.entries);
        self.headers.reserve(needed.headers);
        self.bytes.reserve(needed.bytes);
    }

    /// Counts an object, and copies it if the reserved memory suffices. Never allocates.
    fn add_object(&mut self, object: ListedObject<'_>) {
        let build_id = object.build_id.unwrap_or_default();
        self.needed.entries += 1;
        self.needed.headers += object.headers.len();
        self.needed.bytes += object.path.len() + build_id.len();
        let has_room = self.needed.entries <= self.entries.capacity()
            && self.needed.headers <= self.headers.capacity()
            && self.needed.bytes <= self.bytes.capacity();
        if !has_room {
            return;
        }
        let path = append(&mut self.bytes, object.path);
        let build_id = append(&mut self.bytes, build_id);
        self.entries.push(ListEntry {
            bias: object.bias,
            path,
            headers: append(&mut self.headers, object.headers),
            build_id: Some(build_id).filter(|range| !range.is_empty()),
            labels: object.labels,
        });
    }
}

/// Appends `more` to `all`, and returns the range of its indices there.
fn append<T: Copy>(all: &mut Vec<T>, more: &[T]) -> Range<usize> {
    let start = all.len();
    all.extend_from_slice(more);
    start..all.len()
}

/// Visits each object of the loader's list, the program first, with the list's lock held. `visit` must not allocate.
/// The guard delays forks, so that no child inherits that lock locked.
pub(crate) fn visit_objects(_: &ForkGuard, mut visit: &mut dyn FnMut(ListedObject<'_>)) {
    // SAFETY: dl_iterate_phdr(3) calls `visit_entry` synchronously with this pointer.
    unsafe { libc::dl_iterate_phdr(Some(visit_entry), (&raw mut visit).cast()) };
}

/// Callback of [`visit_objects`] for each object. Finds the object's build id and labels, and passes them on. Returns 0
/// to continue the iteration.
unsafe extern "C" fn visit_entry(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
    // SAFETY: `visit_objects` passes a pointer to its function, which nothing else uses during the call.
    let visit = unsafe { &mut *visit.cast::<&mut dyn FnMut(ListedObject<'_>)>() };
    // SAFETY: dl_iterate_phdr(3): `info` is valid during the callback.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: dl_iterate_phdr(3): `dlpi_phnum` headers are at `dlpi_phdr`.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let path = match info.dlpi_name {
        name if name.is_null() => &[],
        // SAFETY: dl_iterate_phdr(3): the name is NUL-terminated.
        name => unsafe { CStr::from_ptr(name) }.to_bytes(),
    };
    let bias = info.dlpi_addr as usize;
    let find_in_notes = |wanted| {
        let notes = headers.iter().filter(|header| header.p_type == PT_NOTE);
        notes
            .filter_map(|header| memory_range(header, bias))
            .filter(|notes| is_in_readable_segment(notes, headers, bias))
            .find_map(|notes| {
                // SAFETY: the range is inside a readable segment that the loader keeps mapped during the callback.
                let notes = unsafe { slice::from_raw_parts(notes.start as *const u8, notes.len()) };
                find_note(notes, wanted)
            })
    };
    visit(ListedObject {
        bias,
        path,
        headers,
        build_id: find_in_notes(BUILD_ID),
        labels: find_in_notes(LABELS)
            .and_then(labels_address)
            .filter(|start| {
                is_in_readable_segment(&(*start..start.saturating_add(LABELS_SIZE)), headers, bias)
            }),
    });
    0
}

/// Address of an object's `memprof_labels_t`, the C struct by which a program publishes labels of its threads. It is
/// the address of the note plus the distance that the note contains. `None` if the note is not a pointer's size, or the
/// address overflows or is not aligned.
fn labels_address(note: &[u8]) -> Option<usize> {
    let distance = isize::from_ne_bytes(note.try_into().ok()?);
    let labels = note.as_ptr().addr().checked_add_signed(distance)?;
    labels
        .is_multiple_of(align_of::<memprof_labels_t>())
        .then_some(labels)
}

/// Range of addresses that a segment of an object loaded at `bias` occupies. `None` if its end overflows.
pub(crate) fn memory_range(header: &Elf64_Phdr, bias: usize) -> Option<Range<usize>> {
    let start = bias.wrapping_add(header.p_vaddr as usize);
    Some(start..start.checked_add(header.p_memsz as usize)?)
}

/// Whether a readable segment of the object with these headers, loaded at `bias`, contains the whole range `part`.
fn is_in_readable_segment(part: &Range<usize>, headers: &[Elf64_Phdr], bias: usize) -> bool {
    headers
        .iter()
        .filter(|header| header.p_type == PT_LOAD && header.p_flags & PF_R != 0)
        .filter_map(|header| memory_range(header, bias))
        .any(|segment| segment.start <= part.start && part.end <= segment.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_without_space_is_counted_and_not_copied() {
        fn object<'a>(bias: usize, path: &'a [u8], build_id: Option<&'a [u8]>) -> ListedObject<'a> {
            ListedObject {
                bias,
                path,
                headers: &[],
                build_id,
                labels: None,
            }
        }
        let mut listing = LoaderList::default();
        listing.add_object(object(1, b"/a", Some(b"id")));
        assert!(!listing.is_complete());
        assert_eq!(listing.objects().count(), 0);
        listing.clear_and_reserve();
        listing.add_object(object(1, b"/a", Some(b"id")));
        assert!(listing.is_complete());
        let first = listing.objects().next().unwrap();
        assert_eq!((first.bias, first.path), (1, b"/a".as_slice()));
        assert_eq!(first.build_id, Some(b"id".as_slice()));
        // A path longer than all reserved memory.
        listing.add_object(object(2, &[b'x'; 4096], None));
        assert!(!listing.is_complete());
        assert_eq!(listing.objects().count(), 1);
    }
}
