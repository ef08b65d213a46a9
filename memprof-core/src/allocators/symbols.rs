//! Addresses of an allocator's functions, from the loader or from a file's symbol tables.
//!
//! An address is accepted only if it is in the loaded object that defines the name. The functions are called through
//! pointers later, so that object is kept loaded until the process ends.
#![expect(
    unsafe_code,
    reason = "the loader's symbols, and addresses out of symbol tables"
)]

use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use memchr::memmem;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Object, ObjectSymbol, ObjectSymbolTable};

#[cfg(target_arch = "x86_64")]
use crate::allocators::loaded_objects::ForkGuard;
use crate::allocators::loaded_objects::{EXECUTABLE, LoadedObject};
use crate::identity::FoundBy;

type Elf<'a> = ElfFile64<'a, object::Endianness>;

/// The symbols of one loaded object.
#[derive(Debug)]
pub(crate) struct ObjectSymbols<'a> {
    object: &'a LoadedObject,
    source: SymbolSource,
}

#[derive(Debug)]
enum SymbolSource {
    /// Dynamic symbols, looked up on demand.
    Exported(RetainedObject),
    /// Selected symbols of the file's tables, with their addresses in memory.
    Table {
        path: PathBuf,
        names: Vec<(String, usize)>,
    },
}

impl<'a> ObjectSymbols<'a> {
    /// Symbols of the object that defines `anchor` for the whole process. `None` if none of `objects` defines it, or if
    /// that object is being unloaded.
    pub(crate) fn of_object_exporting(objects: &'a [LoadedObject], anchor: &CStr) -> Option<Self> {
        // SAFETY: dlsym(3) gets a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, anchor.as_ptr()) } as usize;
        // This also excludes memprof's own image, because `objects` does not contain it.
        let object = objects
            .iter()
            .find(|object| object.contains_code_at(address))?;
        let source = SymbolSource::Exported(RetainedObject::keep_loaded(object)?);
        Some(Self { object, source })
    }

    /// Address of the variable `name` in the process's global scope. `None` if it is not in a writable segment of
    /// `objects`.
    pub(crate) fn find_exported_variable(objects: &[LoadedObject], name: &CStr) -> Option<usize> {
        // SAFETY: dlsym(3) gets a NUL-terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
        let is_in = |object: &LoadedObject| object.is_writable_at(address);
        objects.iter().any(is_in).then_some(address)
    }

    /// Reads the symbols that `wanted` accepts from an object's file. `None` if no name in the file contains one of the
    /// `anchors`, if `wanted` accepts none, or if the object is being unloaded. Also `None` if the file is no longer
    /// the mapped one: calling an address from it would crash.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, is not a regular file, or consists mostly of holes.
    pub(crate) fn from_file(
        object: &'a LoadedObject,
        anchors: &[&[u8]],
        wanted: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Option<Self>> {
        let names = read_symbols(object, anchors, wanted)?;
        if names.is_empty() {
            return Ok(None);
        }
        // The handle is closed at once, but the object stays loaded.
        if RetainedObject::keep_loaded(object).is_none() {
            log::warn!(
                "{} is being unloaded; its allocator is left alone",
                object.path.display()
            );
            return Ok(None);
        }
        let path = resolve_executable_link(&object.path);
        let source = SymbolSource::Table { path, names };
        Ok(Some(Self { object, source }))
    }

    /// Names that were read from the tables of a file. Empty for exported symbols, which are looked up one by one.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let names = match &self.source {
            SymbolSource::Exported(_) => &[],
            SymbolSource::Table { names, .. } => names.as_slice(),
        };
        names.iter().map(|(name, _)| name.as_str())
    }

    /// Address of a function. `None` if the object has no code with this name.
    pub(crate) fn function_address(&self, name: &CStr) -> Option<usize> {
        self.symbol_address(name)
            .filter(|address| self.object.contains_code_at(*address))
    }

    /// Address of a variable. `None` if the object has no writable data with this name.
    pub(crate) fn variable_address(&self, name: &CStr) -> Option<usize> {
        self.symbol_address(name)
            .filter(|address| self.object.is_writable_at(*address))
    }

    /// Address in memory of a symbol of any kind. `None` if the object lacks the name.
    fn symbol_address(&self, name: &CStr) -> Option<usize> {
        match &self.source {
            SymbolSource::Exported(loaded) => loaded.symbol_address(name),
            SymbolSource::Table { names, .. } => names
                .iter()
                .find(|(known, _)| known.as_bytes() == name.to_bytes())
                .map(|(_, address)| *address),
        }
    }

    /// Path of the object's file. For the program, the target of its link in /proc.
    pub(crate) fn path(&self) -> PathBuf {
        resolve_executable_link(&self.object.path)
    }

    /// Source of these symbols: the dynamic symbols, or the symbol tables of a file, with its path.
    pub(crate) fn found_by(&self) -> FoundBy {
        match &self.source {
            SymbolSource::Exported(_) => FoundBy::DynamicSymbol,
            SymbolSource::Table { path, .. } => FoundBy::SymbolTable(path.clone()),
        }
    }
}

/// Address of the function that serves `malloc` in this process. `None` if no object defines it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn malloc_address() -> Option<usize> {
    // A child that is forked meanwhile would inherit the loader's lock locked.
    let _no_fork = ForkGuard::acquire();
    memprof_sampler::malloc_address()
}

/// Address of the function that serves `malloc` in this process. Never `None` on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn malloc_address() -> Option<usize> {
    Some(libc::malloc as *const () as usize)
}

/// Handle of an object that the loader never unloads (`RTLD_NODELETE`).
#[derive(Debug)]
struct RetainedObject(NonNull<c_void>);

impl RetainedObject {
    /// Keeps the object loaded until the process ends, and returns a handle for dlsym(3). `None` if it is already being
    /// unloaded.
    fn keep_loaded(object: &LoadedObject) -> Option<Self> {
        let path = CString::new(object.path.as_os_str().as_bytes()).ok()?;
        let is_library = object.path != Path::new(EXECUTABLE);
        let path = is_library.then_some(path.as_c_str());
        memprof_own::open_loaded_object(path, libc::RTLD_NODELETE).map(Self)
    }

    /// Address of a dynamic symbol that this object or one of its dependencies defines. `None` if none does.
    fn symbol_address(&self, name: &CStr) -> Option<usize> {
        // SAFETY: dlsym(3) gets an open handle and a NUL-terminated name.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) } as usize;
        (address != 0).then_some(address)
    }
}

/// Dynamic symbols of one object, with their sizes. The object is never unloaded.
#[derive(Debug)]
#[cfg(target_arch = "x86_64")]
pub(crate) struct ExportedSymbols<'a> {
    object: &'a LoadedObject,
    retained: RetainedObject,
}

#[cfg(target_arch = "x86_64")]
impl<'a> ExportedSymbols<'a> {
    /// Keeps the object loaded until the process ends, so that its symbols can be looked up. `None` if it is being
    /// unloaded.
    pub(crate) fn keep_loaded(object: &'a LoadedObject) -> Option<Self> {
        let retained = RetainedObject::keep_loaded(object)?;
        Some(Self { object, retained })
    }

    /// Address in memory and size in bytes of a symbol that is within one segment of the object. `None` if the object
    /// defines no such symbol.
    pub(crate) fn find(&self, name: &CStr) -> Option<(usize, usize)> {
        /// Flag from dlfcn.h: `dladdr1` returns the symbol's table entry.
        const RTLD_DL_SYMENT: libc::c_int = 1;
        let address = self.retained.symbol_address(name)?;
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let mut entry: *mut c_void = std::ptr::null_mut();
        let pointer = std::ptr::with_exposed_provenance(address);
        // SAFETY: dladdr1(3) takes any address, and writes to `info` and `entry`.
        let found =
            unsafe { libc::dladdr1(pointer, info.as_mut_ptr(), &raw mut entry, RTLD_DL_SYMENT) };
        if found == 0 || entry.is_null() {
            return None;
        }
        // SAFETY: dladdr1(3): `entry` points to the symbol's table entry, in an object that stays loaded.
        let size = unsafe { (*entry.cast::<libc::Elf64_Sym>()).st_size } as usize;
        let end = address.checked_add(size)?;
        let mut segments = self.object.segments.iter();
        let is_within =
            segments.any(|segment| segment.range.start <= address && end <= segment.range.end);
        is_within.then_some((address, size))
    }
}

impl Drop for RetainedObject {
    fn drop(&mut self) {
        // SAFETY: dlclose(3) gets the handle that `keep_loaded` opened; RTLD_NODELETE remains in force.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// Converts an address to a function pointer of type `F`.
///
/// # Safety
/// `F` is a function pointer type, and the function at `address` has that type.
pub(crate) unsafe fn as_function<F: Copy>(address: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    let pointer: *const c_void = std::ptr::with_exposed_provenance(address);
    // SAFETY: both have the size of a pointer, and the caller guarantees the function's type.
    unsafe { std::mem::transmute_copy(&pointer) }
}

/// Reads the names that `wanted` accepts from the symbol tables of the object's file, with their addresses in memory.
/// Returns an empty list if no name contains one of the `anchors`, if the file is not the mapped one, or if it is not a
/// valid ELF file. Fails if the file cannot be opened or mapped.
fn read_symbols(
    object: &LoadedObject,
    anchors: &[&[u8]],
    wanted: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<(String, usize)>> {
    let file = open_object_file(&object.path)?;
    // SAFETY: the mapping is read-only and private. If another process truncates the file, the loader's own
    // mapping of it fails too.
    let bytes = unsafe { memmap2::Mmap::map(&file) }?;
    let Ok(elf) = Elf::parse(&*bytes) else {
        return Ok(Vec::new());
    };
    if !is_mapped_from(object, &elf, &bytes) {
        log::debug!(
            "{} is not the file that is mapped; not searched",
            object.path.display()
        );
        return Ok(Vec::new());
    }
    // One search through all strings takes a tenth of the time of a search in each name.
    if !anchors
        .iter()
        .any(|anchor| has_name_containing(&elf, anchor))
    {
        return Ok(Vec::new());
    }
    let tables = [elf.symbol_table(), elf.dynamic_symbol_table()];
    let symbols = tables.iter().flatten().flat_map(|table| table.symbols());
    let names = symbols
        .filter(ObjectSymbol::is_definition)
        .filter_map(|symbol| {
            let name = symbol.name_bytes().ok().filter(|name| wanted(name))?;
            let address = object.bias.wrapping_add(symbol.address() as usize);
            Some((std::str::from_utf8(name).ok()?.to_owned(), address))
        });
    Ok(names.collect())
}

/// Opens the file of a loaded object. Another file may be at its path by now: opening a FIFO would block this thread
/// forever, and reading symbol tables in a huge hole, which takes no disk space, would take minutes.
///
/// # Errors
/// `InvalidInput`: not a regular file, or larger than 64 MiB with more than 15 of 16 bytes in holes. Linkers write no
/// such file, compressing file systems do not reach that ratio, and memprof-report refuses the same files.
fn open_object_file(path: &Path) -> io::Result<File> {
    const MAX_UNCHECKED_SIZE: u64 = 64 << 20;
    const MAX_SPARSE_RATIO: u64 = 16;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut options = File::options();
    let file = options.read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let (length, allocated) = (metadata.len(), metadata.blocks().saturating_mul(512));
    let refused = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    match metadata.is_file() {
        false => refused("no regular file"),
        true if length > MAX_UNCHECKED_SIZE && length / MAX_SPARSE_RATIO > allocated => {
            refused("mostly holes")
        }
        true => Ok(file),
    }
}

/// Whether some name in the file's symbol tables contains `text`.
fn has_name_containing(elf: &Elf<'_>, text: &[u8]) -> bool {
    let tables = [elf.elf_symbol_table(), elf.elf_dynamic_symbol_table()];
    tables.iter().any(|table| {
        let section = elf.elf_section_table().section(table.string_section());
        let strings = section.and_then(|section| section.data(elf.endian(), elf.data()));
        strings.is_ok_and(|strings| memmem::find(strings, text).is_some())
    })
}

/// Whether the file's program headers and build id equal those of the object in memory.
fn is_mapped_from(object: &LoadedObject, elf: &Elf<'_>, bytes: &[u8]) -> bool {
    let header = elf.elf_header();
    let start = header.e_phoff(elf.endian()) as usize;
    let headers = bytes.get(start..start.saturating_add(object.headers.len()));
    headers == Some(&object.headers)
        && elf
            .build_id()
            .is_ok_and(|id| id == object.build_id.as_deref())
}

/// Returns `path`, or for [`EXECUTABLE`] the file to which it links. If the link cannot be read, returns [`EXECUTABLE`]
/// itself.
pub(crate) fn resolve_executable_link(path: &Path) -> PathBuf {
    if path != Path::new(EXECUTABLE) {
        return path.to_owned();
    }
    std::fs::read_link(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::loaded_objects;

    #[test]
    fn exported_symbols_are_of_object_with_anchor() {
        let objects = loaded_objects::list_loaded_objects();
        let libc = ObjectSymbols::of_object_exporting(&objects, c"gnu_get_libc_version").unwrap();
        assert_eq!(libc.found_by(), FoundBy::DynamicSymbol);
        assert!(libc.function_address(c"malloc").is_some());
        assert!(libc.variable_address(c"stdout").is_some());
        // Symbols of the other kind, and names that do not exist.
        assert_eq!(libc.function_address(c"stdout"), None);
        assert_eq!(libc.variable_address(c"malloc"), None);
        assert_eq!(libc.function_address(c"memprof_no_such_function"), None);
        assert!(
            ObjectSymbols::of_object_exporting(&objects, c"memprof_no_such_function").is_none()
        );
        // Without the object that defines it, as with memprof's own image.
        let others: Vec<_> = objects
            .iter()
            .filter(|object| !object.path.ends_with("libc.so.6"))
            .cloned()
            .collect();
        assert!(ObjectSymbols::of_object_exporting(&others, c"gnu_get_libc_version").is_none());
    }

    #[test]
    fn file_other_than_mapped_one_has_no_symbols() {
        let mut objects = loaded_objects::list_loaded_objects();
        let wanted = |name: &[u8]| name == b"gnu_get_libc_version";
        let anchors: [&[u8]; 2] = [b"memprof_no_such_function", b"_get_libc_"];
        let libc = objects
            .iter_mut()
            .find(|object| object.path.ends_with("libc.so.6"))
            .unwrap();
        let symbols = ObjectSymbols::from_file(libc, &anchors, wanted)
            .unwrap()
            .unwrap();
        assert_eq!(
            symbols.names().collect::<Vec<_>>(),
            ["gnu_get_libc_version"]
        );
        let none = ObjectSymbols::from_file(libc, &anchors[..1], wanted);
        assert!(none.unwrap().is_none());
        libc.build_id = Some(vec![0; 20]);
        let none = ObjectSymbols::from_file(libc, &anchors, wanted);
        assert!(none.unwrap().is_none());
        libc.path = "/no/such/file".into();
        ObjectSymbols::from_file(libc, &anchors, wanted).unwrap_err();
    }

    /// A normal open of the FIFO would wait for a writer.
    #[test]
    fn fifo_and_sparse_file_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), kind, mode, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
        std::fs::write(path("holes"), "text").unwrap();
        let holes = File::options().write(true).open(path("holes")).unwrap();
        holes.set_len(7 << 30).unwrap();
        std::fs::write(path("small"), "text").unwrap();
        let check = |name: &str, expected: bool| {
            assert_eq!(open_object_file(&path(name)).is_ok(), expected, "{name}");
        };
        check("fifo", false);
        check("device", false);
        check("holes", false);
        check("small", true);
    }

    #[test]
    fn object_with_retained_symbols_survives_dlclose() {
        let directory = tempfile::tempdir().unwrap();
        let (code, library) = (directory.path().join("x.c"), directory.path().join("x.so"));
        std::fs::write(&code, "int mi_version(void) { return 209; }\n").unwrap();
        let mut cc = std::process::Command::new("cc");
        let cc = cc.args(["-shared", "-fPIC", "-o"]).args([&library, &code]);
        assert!(cc.status().unwrap().success());
        let is_loaded = || {
            loaded_objects::list_loaded_objects()
                .iter()
                .any(|object| object.path == library)
        };

        let path = CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: dlopen(3) gets a path; the library has no constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        let objects = loaded_objects::list_loaded_objects();
        let object = objects
            .iter()
            .find(|object| object.path == library)
            .unwrap();
        let symbols = ObjectSymbols::from_file(object, &[b"mi_"], |name| name == b"mi_version");
        let symbols = symbols.unwrap().unwrap();
        let function = symbols.function_address(c"mi_version").unwrap();
        drop(symbols);
        // SAFETY: dlclose(3) gets the handle that dlopen(3) returned.
        unsafe { libc::dlclose(handle) };
        assert!(is_loaded());
        // SAFETY: the C source above defines the function with this type.
        let function: extern "C" fn() -> i32 = unsafe { as_function(function) };
        assert_eq!(function(), 209);
    }
}
