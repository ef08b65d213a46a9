//! The loader's list, copied without an allocation while the loader holds its lock.
//!
//! A sampled allocation unwinds, and an unwinder that has a lock of its own (libunwind, which
//! gperftools uses) may hold it in another thread that waits for the loader's: with an allocation
//! in here, neither would ever go on.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::slice;

use memprof_plugin_abi::raw::memprof_labels_t;

use libc::{Elf64_Phdr, PF_R, PT_LOAD, PT_NOTE, dl_phdr_info};

use super::{BUILD_ID, ForkGuard, LABELS, note};

const LABELS_SIZE: usize = size_of::<memprof_labels_t>();

/// What the loader says of its objects, the program first.
#[derive(Debug, Default)]
pub(super) struct LoaderList {
    entries: Vec<ListEntry>,
    headers: Vec<Elf64_Phdr>,
    /// Paths and build ids.
    bytes: Vec<u8>,
    needed: ListCapacity,
}

/// How much room a listing takes.
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
pub(super) struct ListedObject<'a> {
    pub bias: usize,
    /// As the loader has it: empty for the program.
    pub path: &'a [u8],
    pub headers: &'a [Elf64_Phdr],
    pub build_id: Option<&'a [u8]>,
    /// Where a `memprof_labels_t` lies.
    pub labels: Option<usize>,
}

impl LoaderList {
    /// Of this moment.
    pub(super) fn capture() -> Self {
        let mut listing = Self::default();
        // The first round only measures; objects may come until the next.
        while !listing.is_complete() || listing.entries.is_empty() {
            listing.make_room();
            let _reading = ForkGuard::acquire();
            // SAFETY: dl_iterate_phdr(3): calls `copy` synchronously with the pointer passed here.
            unsafe { libc::dl_iterate_phdr(Some(copy), (&raw mut listing).cast()) };
        }
        listing
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = ListedObject<'_>> {
        self.entries.iter().map(|entry| ListedObject {
            bias: entry.bias,
            path: &self.bytes[entry.path.clone()],
            headers: &self.headers[entry.headers.clone()],
            build_id: entry.build_id.clone().map(|range| &self.bytes[range]),
            labels: entry.labels,
        })
    }

    fn is_complete(&self) -> bool {
        self.entries.len() == self.needed.entries
    }

    fn make_room(&mut self) {
        let needed = std::mem::take(&mut self.needed);
        self.entries.clear();
        self.headers.clear();
        self.bytes.clear();
        self.entries.reserve(needed.entries);
        self.headers.reserve(needed.headers);
        self.bytes.reserve(needed.bytes);
    }

    /// Adds an object where there is room for it, and counts it.
    fn add(&mut self, object: ListedObject<'_>) {
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

fn append<T: Copy>(all: &mut Vec<T>, more: &[T]) -> Range<usize> {
    let start = all.len();
    all.extend_from_slice(more);
    start..all.len()
}

/// Called under the loader's lock.
unsafe extern "C" fn copy(info: *mut dl_phdr_info, _: usize, listing: *mut c_void) -> c_int {
    // SAFETY: `of_this_process` passes its listing, and nothing else uses it meanwhile.
    let listing = unsafe { &mut *listing.cast::<LoaderList>() };
    // SAFETY: dl_iterate_phdr(3): valid during the callback.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: dl_iterate_phdr(3): `dlpi_phnum` headers lie at `dlpi_phdr`.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let path = match info.dlpi_name {
        name if name.is_null() => &[],
        // SAFETY: dl_iterate_phdr(3): NUL-terminated.
        name => unsafe { CStr::from_ptr(name) }.to_bytes(),
    };
    let bias = info.dlpi_addr as usize;
    let find = |wanted| {
        let notes = headers.iter().filter(|header| header.p_type == PT_NOTE);
        notes
            .filter_map(|header| range(header, bias))
            .filter(|notes| is_readable(notes, headers, bias))
            .find_map(|notes| {
                // SAFETY: inside a readable segment that the loader keeps mapped during the callback.
                let notes = unsafe { slice::from_raw_parts(notes.start as *const u8, notes.len()) };
                note(notes, wanted)
            })
    };
    listing.add(ListedObject {
        bias,
        path,
        headers,
        build_id: find(BUILD_ID),
        labels: find(LABELS).and_then(note_target).filter(|start| {
            is_readable(&(*start..start.saturating_add(LABELS_SIZE)), headers, bias)
        }),
    });
    0
}

/// What a note holds the distance to.
fn note_target(note: &[u8]) -> Option<usize> {
    let distance = isize::from_ne_bytes(note.try_into().ok()?);
    let labels = note.as_ptr().addr().checked_add_signed(distance)?;
    labels
        .is_multiple_of(align_of::<memprof_labels_t>())
        .then_some(labels)
}

/// Where it lies in memory.
fn range(header: &Elf64_Phdr, bias: usize) -> Option<Range<usize>> {
    let start = bias.wrapping_add(header.p_vaddr as usize);
    Some(start..start.checked_add(header.p_memsz as usize)?)
}

fn is_readable(part: &Range<usize>, headers: &[Elf64_Phdr], bias: usize) -> bool {
    headers
        .iter()
        .filter(|header| header.p_type == PT_LOAD && header.p_flags & PF_R != 0)
        .filter_map(|header| range(header, bias))
        .any(|segment| segment.start <= part.start && part.end <= segment.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_not_added() {
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
        listing.add(object(1, b"/a", Some(b"id")));
        assert!(!listing.is_complete());
        assert_eq!(listing.objects().count(), 0);
        listing.make_room();
        listing.add(object(1, b"/a", Some(b"id")));
        assert!(listing.is_complete());
        let first = listing.objects().next().unwrap();
        assert_eq!((first.bias, first.path), (1, b"/a".as_slice()));
        assert_eq!(first.build_id, Some(b"id".as_slice()));
        // A path longer than all the room there is.
        listing.add(object(2, &[b'x'; 4096], None));
        assert!(!listing.is_complete());
        assert_eq!(listing.objects().count(), 1);
    }
}
