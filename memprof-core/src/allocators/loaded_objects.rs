//! The ELF objects that the loader has mapped into this process.
#![expect(
    unsafe_code,
    reason = "the loader's own list, and program headers in memory"
)]

mod loader_list;

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{mem, slice};

use libc::{PF_R, PF_W, PF_X, PT_LOAD, dl_phdr_info};
use loader_list::{ListedObject, LoaderList};
pub(crate) use memprof_own::ForkGuard;

/// The owners of notes, and their types.
const BUILD_ID: (&[u8], u32) = (b"GNU\0", 3);
/// memprof.h, `memprof_labels_t`.
const LABELS: (&[u8], u32) = (b"memprof\0", 1);

/// One mapped ELF object.
#[derive(Clone, Debug)]
pub(crate) struct LoadedObject {
    /// The file it was mapped from; [`EXECUTABLE`] for the program itself. Not a file for the
    /// vDSO.
    pub path: PathBuf,
    /// What to add to an address in the file.
    pub bias: usize,
    /// The program headers, byte for byte as mapped.
    pub headers: Vec<u8>,
    /// The loaded segments, in memory.
    pub segments: Vec<Segment>,
    /// The GNU build id, where it has one.
    pub build_id: Option<Vec<u8>>,
    /// Where a `memprof_labels_t` lies, if it tells of one.
    pub labels: Option<usize>,
}

/// One loaded segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Its addresses in memory.
    pub range: Range<usize>,
    /// `PF_R | PF_W | PF_X`.
    pub flags: u32,
    /// Where it starts in the file.
    pub offset: u64,
}

/// The program itself, also when its file was deleted or replaced. Not `self`, which has nothing
/// once the main thread has exited.
pub(crate) const EXECUTABLE: &str = "/proc/thread-self/exe";

impl LoadedObject {
    /// Where its first page is mapped; none for an object without segments.
    pub(crate) fn start(&self) -> Option<usize> {
        Some(self.segments.first()?.range.start & !0xfff)
    }

    /// Tells it from every other object, also from one that is mapped in its place later.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.path, self.bias, &self.headers, &self.build_id).hash(&mut hasher);
        hasher.finish()
    }

    /// True when `address` lies in one of its segments.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.range.contains(&address))
    }

    /// True when `address` may be called.
    pub(crate) fn is_code(&self, address: usize) -> bool {
        self.has(address, PF_X)
    }

    /// True when a variable may lie at `address`.
    pub(crate) fn is_writable(&self, address: usize) -> bool {
        self.has(address, PF_W)
    }

    /// The segments that nobody writes to, so that the file has what they hold.
    pub(crate) fn constants(&self) -> impl Iterator<Item = &Segment> {
        self.segments
            .iter()
            .filter(|segment| segment.flags & PF_W == 0)
    }

    fn has(&self, address: usize, flag: u32) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.flags & flag != 0 && segment.range.contains(&address))
    }
}

/// All objects, the program first.
pub(crate) fn loaded() -> Vec<LoadedObject> {
    let listing = LoaderList::capture();
    let objects = listing.objects().enumerate();
    objects
        .map(|(at, object)| match object.path {
            [] if at == 0 => load_object(Path::new(EXECUTABLE), &object),
            path => load_object(Path::new(OsStr::from_bytes(path)), &object),
        })
        .collect()
}

/// How many objects were ever loaded: while it stays the same, [`loaded`] can only shrink.
pub(crate) fn load_count() -> u64 {
    let _reading = ForkGuard::acquire();
    let mut count = 0;
    // SAFETY: dl_iterate_phdr(3): calls `read_count` synchronously with the pointer passed here.
    unsafe { libc::dl_iterate_phdr(Some(read_count), (&raw mut count).cast()) };
    count
}

/// How many objects were ever loaded, and how many of them unloaded again.
pub(crate) fn load_and_unload_count() -> (u64, u64) {
    let _reading = ForkGuard::acquire();
    let mut counts = (0, 0);
    // SAFETY: dl_iterate_phdr(3): calls `read_counts` synchronously with the pointer passed here.
    unsafe { libc::dl_iterate_phdr(Some(read_counts), (&raw mut counts).cast()) };
    counts
}

unsafe extern "C" fn read_counts(info: *mut dl_phdr_info, _: usize, counts: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3): valid during the callback.
    let info = unsafe { &*info };
    // SAFETY: `load_and_unload_count` passes its counts.
    unsafe { *counts.cast::<(u64, u64)>() = (info.dlpi_adds, info.dlpi_subs) };
    1
}

unsafe extern "C" fn read_count(info: *mut dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3): valid during the callback.
    let adds = unsafe { (*info).dlpi_adds };
    // SAFETY: `load_count` passes its counter.
    unsafe { *count.cast::<u64>() = adds };
    1
}

fn load_object(path: &Path, object: &ListedObject<'_>) -> LoadedObject {
    let headers = object.headers;
    let segments = headers
        .iter()
        .filter(|header| header.p_type == PT_LOAD)
        .map(|header| {
            let start = object.bias.wrapping_add(header.p_vaddr as usize);
            Segment {
                range: start..start.saturating_add(header.p_memsz as usize),
                flags: header.p_flags,
                offset: header.p_offset,
            }
        });
    // SAFETY: program headers are plain integers without padding.
    let bytes =
        unsafe { slice::from_raw_parts(headers.as_ptr().cast::<u8>(), mem::size_of_val(headers)) };
    LoadedObject {
        path: path.to_owned(),
        bias: object.bias,
        headers: bytes.to_vec(),
        segments: segments.collect(),
        build_id: object.build_id.map(<[u8]>::to_vec),
        labels: object.labels,
    }
}

/// The content of a note in a note segment (gABI, "Note Section"; padded to 4 bytes).
fn note<'a>(mut notes: &'a [u8], (owner, kind): (&[u8], u32)) -> Option<&'a [u8]> {
    let word = |bytes: &[u8], at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    let padded = |size: u32| (size as usize).next_multiple_of(4);
    loop {
        let (name_size, size, found) = (word(notes, 0)?, word(notes, 4)?, word(notes, 8)?);
        let rest = notes.get(12..)?;
        let name = rest.get(..name_size as usize)?;
        let rest = rest.get(padded(name_size)..)?;
        if found == kind && name == owner {
            return rest.get(..size as usize);
        }
        notes = rest.get(padded(size)..)?;
    }
}

/// The path by which the program was executed, maybe before a chroot(2); of a script, its own.
fn program_path() -> Option<&'static Path> {
    // SAFETY: getauxval(3) reads a constant of this process.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    if path.is_null() {
        return None;
    }
    // SAFETY: the kernel puts a NUL-terminated text there (getauxval(3), AT_EXECFN).
    let path = unsafe { CStr::from_ptr(path) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    path.is_absolute().then_some(path)
}

/// The mappings of `objects` in the format of `proc_pid_maps(5)`, for a process without /proc.
pub(crate) fn maps(objects: &[LoadedObject]) -> String {
    let mut text = String::new();
    for object in objects {
        let executed = program_path().filter(|_| object.path == Path::new(EXECUTABLE));
        let path = executed.unwrap_or(&object.path);
        for Segment {
            range,
            flags,
            offset,
        } in &object.segments
        {
            let bit = |flag: u32, letter: char| if flags & flag != 0 { letter } else { '-' };
            let start = range.start & !0xfff;
            writeln!(
                text,
                "{start:x}-{:x} {}{}{}p {:08x} 00:00 0 {}",
                range.end.next_multiple_of(0x1000),
                bit(PF_R, 'r'),
                bit(PF_W, 'w'),
                bit(PF_X, 'x'),
                offset & !0xfff,
                path.display(),
            )
            .expect("writing to a String cannot fail");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_comes_first_and_holds_this_function() {
        let objects = loaded();
        assert_eq!(objects[0].path, Path::new(EXECUTABLE));
        let here = the_program_comes_first_and_holds_this_function as *const () as usize;
        assert!(objects[0].is_code(here));
        assert!(!objects[1..].iter().any(|object| object.contains(here)));
    }

    #[test]
    fn libc_has_the_build_id_that_its_file_has() {
        let objects = loaded();
        let libc = objects
            .iter()
            .find(|o| o.path.ends_with("libc.so.6"))
            .unwrap();
        let file = std::fs::read(&libc.path).unwrap();
        let id = libc.build_id.as_ref().unwrap();
        assert_eq!(id.len(), 20);
        assert!(memchr::memmem::find(&file, id).is_some());
    }

    #[test]
    fn truncated_notes_have_no_build_id() {
        let mut notes = Vec::new();
        for word in [4u32, 4, BUILD_ID.1] {
            notes.extend(word.to_ne_bytes());
        }
        notes.extend(b"GNU\0\xaa\xbb\xcc\xdd");
        assert_eq!(note(&notes, BUILD_ID).unwrap(), [0xaa, 0xbb, 0xcc, 0xdd]);
        assert_eq!(note(&notes, LABELS), None);
        for length in 0..notes.len() {
            assert_eq!(note(&notes[..length], BUILD_ID), None, "{length} bytes");
        }
    }

    #[test]
    fn maps_without_proc_cover_what_proc_says() {
        let objects = loaded();
        let maps = maps(&objects);
        let first = maps.lines().next().unwrap();
        let own = std::env::current_exe().unwrap();
        let expected = format!(" 00000000 00:00 0 {}", own.display());
        assert!(first.ends_with(&expected), "{first}");
        assert_eq!(
            maps.lines().count(),
            objects.iter().map(|o| o.segments.len()).sum::<usize>()
        );
    }
}
