//! Opens the files of a process's allocators.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use libc::{O_NOCTTY, O_NONBLOCK};
use memprof_ptrace::frame_memory::loaded_libraries;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::memory::Memory;
use memprof_sampler::TABLES_SYMBOL;

use crate::error::AttachError;
use crate::target::read_maps;

/// Bytes at the start of a file and of its image that are compared: ELF headers, and with them mostly the build ID.
const COMPARED_SIZE: usize = 4096;

/// An opened file.
#[derive(Debug)]
pub(super) struct AllocatorFile {
    /// Its path in the process, for messages.
    pub(super) path: String,
    pub(super) file: File,
    /// Load address of a library; `None` for the program.
    pub(super) base: Option<u64>,
}

impl AllocatorFile {
    /// Opens the program of a process by its link in /proc, also if its file was replaced.
    ///
    /// # Errors
    /// `Io`: the file cannot be opened.
    pub(super) fn open_program(pid: u32) -> Result<Self, AttachError> {
        let path = format!("/proc/{pid}/exe");
        let file = File::open(&path).map_err(AttachError::io_error(path.clone()))?;
        Ok(Self {
            path,
            file,
            base: None,
        })
    }

    /// Opens the first library in the loader's list that defines `malloc`. `None` if none does.
    ///
    /// # Errors
    /// `Io`: the process cannot be read; `NotPatched`: the file was replaced since the process has loaded it.
    pub(super) fn open_malloc_library(pid: u32) -> Result<Option<Self>, AttachError> {
        let libraries = LoadedLibraries::read(pid)?;
        let mut images = libraries.images();
        let owner = images.find(|(_, image)| image.symbol_address("malloc").is_some());
        let Some((base, _)) = owner else {
            return Ok(None);
        };
        libraries.open_library(pid, base)
    }

    /// Opens the libraries that do not export `malloc`, without memprof's own, which exports [`TABLES_SYMBOL`]. Leaves
    /// out those whose files were replaced.
    ///
    /// # Errors
    /// `Io`: the process cannot be read.
    pub(super) fn open_other_libraries(pid: u32) -> Result<Vec<Self>, AttachError> {
        let libraries = LoadedLibraries::read(pid)?;
        let excluded = ["malloc", TABLES_SYMBOL];
        // The first image is the program.
        let images = libraries.images().skip(1);
        let others = images.filter(|(_, image)| {
            excluded
                .iter()
                .all(|name| image.symbol_address(name).is_none())
        });
        let opened =
            others.filter_map(|(base, _)| libraries.open_library(pid, base).ok().flatten());
        Ok(opened.collect())
    }
}

/// The program and its libraries, as the loader lists them.
struct LoadedLibraries {
    memory: Memory,
    bases: Vec<u64>,
    /// Mappings at `bases`, by their starts: the maps of a process with a thousand libraries are parsed once.
    mapped: HashMap<u64, MappedFile>,
}

/// Mapping of a file.
struct MappedFile {
    range: Range<u64>,
    /// Path as the process sees it.
    path: Vec<u8>,
}

impl LoadedLibraries {
    /// Reads the mappings of a process and its loader's list of libraries. Fails if the process cannot be read.
    fn read(pid: u32) -> Result<Self, AttachError> {
        let memory =
            Memory::open(pid).map_err(AttachError::io_error(format!("/proc/{pid}/mem")))?;
        let maps = read_maps(pid)?;
        let bases = loaded_libraries(&memory, &maps)
            .map_err(AttachError::io_error("its loader's list of libraries"))?;
        let starts: HashSet<u64> = bases.iter().copied().collect();
        let mapped = mappings(&maps).filter(|mapping| starts.contains(&mapping.range.start));
        let mapped = mapped.map(|mapping| {
            let (range, path) = (mapping.range, mapping.path.to_vec());
            (range.start, MappedFile { range, path })
        });
        Ok(Self {
            mapped: mapped.collect(),
            memory,
            bases,
        })
    }

    /// Iterates over the load addresses and symbols of the libraries whose symbols can be read.
    fn images(&self) -> impl Iterator<Item = (u64, LibraryImage)> {
        let bases = self.bases.iter();
        bases.filter_map(|base| Some((*base, LibraryImage::read(&self.memory, *base).ok()?)))
    }

    /// Opens the file that is loaded at `base`. `None` if no file is mapped there. Fails with `NotPatched` if the file
    /// was replaced since it was loaded.
    fn open_library(&self, pid: u32, base: u64) -> Result<Option<AllocatorFile>, AttachError> {
        let Some(image) = self.mapped.get(&base) else {
            return Ok(None);
        };
        let path = String::from_utf8_lossy(&image.path).into_owned();
        let range = format!("{:x}-{:x}", image.range.start, image.range.end);
        let process = Path::new("/proc").join(pid.to_string());
        let seen = std::ffi::OsStr::from_bytes(image.path.strip_prefix(b"/").unwrap_or(b""));
        // The first path leads to a removed file too, but the kernel gives it to privileged users only.
        let candidates = [
            process.join("map_files").join(range),
            process.join("root").join(seen),
        ];
        let file = candidates
            .iter()
            .find_map(|path| open_if_loaded(path, &self.memory, base).ok().flatten());
        let file = file.ok_or_else(|| {
            let message = format!(
                "the file of {path} was replaced since the process has loaded it; restart the process, or try as root"
            );
            AttachError::NotPatched(message)
        })?;
        Ok(Some(AllocatorFile {
            path,
            file,
            base: Some(base),
        }))
    }
}

/// Opens the file at `path`. `None` if it is no regular file, or not the one that is loaded at `base`: the first
/// [`COMPARED_SIZE`] bytes differ. Fails if the file or the loaded bytes cannot be read.
fn open_if_loaded(path: &Path, memory: &Memory, base: u64) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    // The process may have put a FIFO in the file's place.
    options.read(true).custom_flags(O_NONBLOCK | O_NOCTTY);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let length = COMPARED_SIZE.min(metadata.len() as usize);
    let (mut stored, mut loaded) = (vec![0; length], vec![0; length]);
    file.read_exact_at(&mut stored, 0)?;
    memory.read(base, &mut loaded)?;
    Ok((stored == loaded).then_some(file))
}
