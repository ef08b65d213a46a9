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
use loader_list::LoaderList;
pub(crate) use loader_list::{ListedObject, memory_range, visit_objects};
pub(crate) use memprof_own::ForkGuard;

/// Owner and type of the note with the GNU build id.
const BUILD_ID: (&[u8], u32) = (b"GNU\0", 3);
/// Owner and type of the note that locates a `memprof_labels_t` (memprof.h).
const LABELS: (&[u8], u32) = (b"memprof\0", 1);

/// One mapped ELF object.
#[derive(Clone, Debug)]
pub(crate) struct LoadedObject {
    /// File from which the object was mapped; [`EXECUTABLE`] for the program itself. For the vDSO, the name that the
    /// loader gives it.
    pub path: PathBuf,
    /// Difference between an address in memory and the virtual address in the file.
    pub bias: usize,
    /// Program headers, byte for byte as mapped.
    pub headers: Vec<u8>,
    /// Loaded segments.
    pub segments: Vec<Segment>,
    /// GNU build id. `None` if the object has none.
    pub build_id: Option<Vec<u8>>,
    /// Address of a `memprof_labels_t`, if a note of the object contains one.
    pub labels: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Address range in memory.
    pub range: Range<usize>,
    /// Access flags: `PF_R | PF_W | PF_X`.
    pub flags: u32,
    /// Offset of the segment in the file.
    pub offset: u64,
}

/// Path of the program itself, valid even after its file was deleted or replaced. It does not use /proc/self, because
/// links there stop working when the main thread has exited.
pub(crate) const EXECUTABLE: &str = "/proc/thread-self/exe";

impl LoadedObject {
    /// Address of the page in which the first segment starts. `None` for an object without segments.
    pub(crate) fn start_address(&self) -> Option<usize> {
        Some(self.segments.first()?.range.start & !0xfff)
    }

    /// Hash of path, load address, program headers and build id. It distinguishes an object from one that is later
    /// mapped at its addresses.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.path, self.bias, &self.headers, &self.build_id).hash(&mut hasher);
        hasher.finish()
    }

    /// Whether `address` is in one of the loaded segments, with code or data.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.range.contains(&address))
    }

    /// Whether `address` is in an executable segment.
    pub(crate) fn contains_code_at(&self, address: usize) -> bool {
        self.has_access_at(address, PF_X)
    }

    /// Start of the first executable segment and end of the last. There may be several, because an optimizer such as
    /// BOLT divides the code. `None` for an object without code.
    pub(crate) fn code_bounds(&self) -> Option<[usize; 2]> {
        let code = self.segments.iter().filter(|each| each.flags & PF_X != 0);
        let start = code.clone().map(|segment| segment.range.start).min()?;
        let end = code.map(|segment| segment.range.end).max()?;
        Some([start, end])
    }

    /// Whether `address` is in a writable segment.
    pub(crate) fn is_writable_at(&self, address: usize) -> bool {
        self.has_access_at(address, PF_W)
    }

    /// Segments that are not writable, so their memory equals the file.
    pub(crate) fn constant_segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments
            .iter()
            .filter(|segment| segment.flags & PF_W == 0)
    }

    /// Whether `address` is in a segment with this access flag, such as `PF_X`.
    fn has_access_at(&self, address: usize, flag: u32) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.flags & flag != 0 && segment.range.contains(&address))
    }
}

/// Lists all objects that the loader has loaded, the program first. The program's path is [`EXECUTABLE`].
pub(crate) fn list_loaded_objects() -> Vec<LoadedObject> {
    let listing = LoaderList::capture();
    let objects = listing.objects().enumerate();
    objects
        .map(|(index, object)| match object.path {
            [] if index == 0 => copy_object(Path::new(EXECUTABLE), &object),
            path => copy_object(Path::new(OsStr::from_bytes(path)), &object),
        })
        .collect()
}

/// Whether the code at `address` belongs to the program itself, not to a library.
pub(crate) fn is_program_code(address: usize) -> bool {
    list_loaded_objects()
        .first()
        .is_some_and(|program| program.contains_code_at(address))
}

/// Number of objects ever loaded. While it stays the same, no object can have been added to the list that
/// [`list_loaded_objects`] returns.
pub(crate) fn load_count() -> u64 {
    load_count_under(&ForkGuard::acquire())
}

/// Number of objects ever loaded, read under a guard that the caller holds. Allocates nothing.
pub(crate) fn load_count_under(no_fork: &ForkGuard) -> u64 {
    let mut count = 0;
    with_loader_list_locked(no_fork, &mut |(loads, _)| count = loads);
    count
}

/// Numbers of objects that were ever loaded, and that were ever unloaded.
pub(crate) fn load_and_unload_counts() -> (u64, u64) {
    let mut counts = (0, 0);
    with_loader_list_locked(&ForkGuard::acquire(), &mut |now| counts = now);
    counts
}

/// Runs `work` while no object can be added to the loader's list or removed from it. `work` gets the numbers of objects
/// ever loaded and unloaded. It may read the list, but must not allocate. The guard delays forks, so that no child
/// inherits the loader's lock locked.
pub(crate) fn with_loader_list_locked(_: &ForkGuard, mut work: &mut dyn FnMut((u64, u64))) {
    // SAFETY: dl_iterate_phdr(3) calls `run_work_with_list_locked` synchronously with this pointer.
    unsafe { libc::dl_iterate_phdr(Some(run_work_with_list_locked), (&raw mut work).cast()) };
}

/// Callback of [`with_loader_list_locked`], which runs the work. Returns 1 to end the iteration after the first object.
unsafe extern "C" fn run_work_with_list_locked(
    info: *mut dl_phdr_info,
    _: usize,
    work: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr(3): `info` is valid during the callback.
    let info = unsafe { &*info };
    // SAFETY: `with_loader_list_locked` passes a pointer to its work, which nothing else uses during the call.
    let work = unsafe { &mut *work.cast::<&mut dyn FnMut((u64, u64))>() };
    work((info.dlpi_adds, info.dlpi_subs));
    1
}

/// Copies an entry of the loader's list. `path` replaces the entry's own path, which is empty for the program.
fn copy_object(path: &Path, object: &ListedObject<'_>) -> LoadedObject {
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

/// Finds a note by its owner and type, and returns its content. `notes` is a note segment (gABI, "Note Section"; padded
/// to 4 bytes). `None` if there is no such note, or the segment is malformed.
fn find_note<'a>(mut notes: &'a [u8], (owner, kind): (&[u8], u32)) -> Option<&'a [u8]> {
    let read_u32 = |bytes: &[u8], offset: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(
            bytes.get(offset..offset + 4)?.try_into().ok()?,
        ))
    };
    let padded = |size: u32| (size as usize).next_multiple_of(4);
    loop {
        // A note begins with three words: the sizes of its owner and of its content, and its type.
        let (name_size, size, found) = (
            read_u32(notes, 0)?,
            read_u32(notes, 4)?,
            read_u32(notes, 8)?,
        );
        let remaining = notes.get(12..)?;
        let name = remaining.get(..name_size as usize)?;
        let remaining = remaining.get(padded(name_size)..)?;
        if found == kind && name == owner {
            return remaining.get(..size as usize);
        }
        notes = remaining.get(padded(size)..)?;
    }
}

/// Path with which the program was executed; for a script, the script's path. It may be relative to an earlier root
/// (chroot(2)). `None` if it is not absolute, or if the kernel did not pass it.
fn program_path() -> Option<&'static Path> {
    // SAFETY: getauxval(3) reads a constant of this process.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    if path.is_null() {
        return None;
    }
    // SAFETY: getauxval(3), AT_EXECFN: the kernel stores a NUL-terminated string there.
    let path = unsafe { CStr::from_ptr(path) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    path.is_absolute().then_some(path)
}

/// Lists the segments of `objects` in the format of `proc_pid_maps(5)`, for a process that cannot read /proc. Addresses
/// and offsets are rounded to pages; device and inode are 0. The program's own lines have the path with which it was
/// executed, if that path is known and absolute.
pub(crate) fn maps_text(objects: &[LoadedObject]) -> String {
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
            let access = |flag: u32, letter: char| if flags & flag != 0 { letter } else { '-' };
            let start = range.start & !0xfff;
            writeln!(
                text,
                "{start:x}-{:x} {}{}{}p {:08x} 00:00 0 {}",
                range.end.next_multiple_of(0x1000),
                access(PF_R, 'r'),
                access(PF_W, 'w'),
                access(PF_X, 'x'),
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
    fn first_object_is_program() {
        let objects = list_loaded_objects();
        assert_eq!(objects[0].path, Path::new(EXECUTABLE));
        let here = first_object_is_program as *const () as usize;
        assert!(objects[0].contains_code_at(here));
        assert!(!objects[1..].iter().any(|object| object.contains(here)));
    }

    #[test]
    fn bounds_of_code_contain_each_executable_segment() {
        let segment = |(start, flags): &(usize, u32)| Segment {
            range: *start..*start + 0x10,
            flags: *flags,
            offset: 0,
        };
        let check = |segments: &[(usize, u32)], expected| {
            let object = LoadedObject {
                segments: segments.iter().map(segment).collect(),
                ..list_loaded_objects().remove(0)
            };
            assert_eq!(object.code_bounds(), expected, "{segments:?}");
        };
        check(&[(0, PF_R), (0x40, PF_R | PF_W)], None);
        check(&[(0, PF_R), (0x20, PF_R | PF_X)], Some([0x20, 0x30]));
        // BOLT leaves the functions that it did not move in their old segment.
        let divided = [(0x20, PF_R | PF_X), (0x40, PF_R), (0x80, PF_R | PF_X)];
        check(&divided, Some([0x20, 0x90]));
    }

    #[test]
    fn build_id_of_libc_is_in_its_file() {
        let objects = list_loaded_objects();
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
        assert_eq!(
            find_note(&notes, BUILD_ID).unwrap(),
            [0xaa, 0xbb, 0xcc, 0xdd]
        );
        assert_eq!(find_note(&notes, LABELS), None);
        for length in 0..notes.len() {
            assert_eq!(
                find_note(&notes[..length], BUILD_ID),
                None,
                "{length} bytes"
            );
        }
    }

    #[test]
    fn maps_text_has_line_per_segment() {
        let objects = list_loaded_objects();
        let maps = maps_text(&objects);
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
