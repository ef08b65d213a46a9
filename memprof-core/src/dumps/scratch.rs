//! The memory to which an allocator writes a dump.
//!
//! jemalloc holds locks that every allocating thread needs while it writes, so the target must never block: it is not
//! on a disk. The host may also be short of memory. The thread that waits for the allocator therefore [polls the
//! headroom](Scratch::abandon_on_shortage), and releases the written pages before the kernel would kill the process.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use memprof_messages::Operation;
use memprof_own::{GuardedFd, move_above_stdio};
use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::dumps::hidden_file::{self, PRIVATE};
use crate::dumps::publish::copy_in_pieces;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;

/// Usual mount point of a memory file system (`shm_open(3)`).
const SHARED_MEMORY: &str = "/dev/shm";
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;

/// Number of bytes to release at a time: a huge page, which can only be released as a whole.
const PUNCH_SIZE: u64 = 2 << 20;

/// A file in memory, with a path for an allocator that only this process can use.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: GuardedFd<File>,
    name: ScratchPath,
    progress: Mutex<ScratchState>,
}

#[derive(Debug)]
enum ScratchPath {
    /// /proc/thread-self/fd/N. Not /proc/self, which lists no descriptors after the main thread has exited.
    Descriptor,
    /// A hidden file, for systems without /proc.
    Hidden(PathBuf),
    /// No path, because there is neither /proc nor a memory file system. Only writers that take a descriptor can use
    /// the file.
    None,
}

#[derive(Debug)]
enum ScratchState {
    /// The allocator may still be writing.
    Writing,
    /// Too little memory is left. Further output of the allocator is discarded.
    Abandoned(Error),
    /// The allocator has written everything.
    Done,
}

impl Scratch {
    /// Creates the file for a dump that will be stored in `directory`. With /proc, it is a memfd, or else a nameless
    /// file in /dev/shm. Without /proc, it is a file named `hidden`: in `directory` if that is on a memory file system,
    /// or else in /dev/shm. If neither is possible, it is a memfd without a path.
    ///
    /// # Errors
    /// `Io`: none of these files can be created.
    pub(crate) fn create(directory: &Path, hidden: &str) -> Result<Self> {
        if Path::new("/proc/thread-self/fd").exists() {
            // memfd_create fails with ENOSYS or EPERM under a strict seccomp filter.
            return Self::create_memfd().or_else(|memory| {
                Self::create_unnamed_file(Path::new(SHARED_MEMORY))
                    .map_err(|_| no_memory_file_error(&memory))
            });
        }
        let directories = [directory, Path::new(SHARED_MEMORY)];
        let hidden = directories.map(|path| Self::create_hidden_file(path, hidden));
        match hidden.into_iter().find_map(io::Result::ok) {
            Some(hidden) => Ok(hidden),
            None => Self::create_memfd_with_path(ScratchPath::None)
                .map_err(|memory| no_memory_file_error(&memory)),
        }
    }

    /// Takes ownership of an empty file. `name` says by which path, if any, the allocator opens it.
    fn from_empty_file(file: OwnedFd, name: ScratchPath) -> io::Result<Self> {
        Ok(Self {
            file: GuardedFd::new(file.into())?,
            name,
            progress: Mutex::new(ScratchState::Writing),
        })
    }

    /// Creates a memfd, which the allocator opens through its descriptor in /proc.
    fn create_memfd() -> io::Result<Self> {
        Self::create_memfd_with_path(ScratchPath::Descriptor)
    }

    /// Creates a memfd. `name` says by which path, if any, the allocator opens it.
    fn create_memfd_with_path(name: ScratchPath) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = retry_on_intr(|| rustix::fs::memfd_create("memprof-dump", flags))?;
        rustix::fs::fchmod(&memory, PRIVATE)?;
        Self::from_empty_file(memory, name)
    }

    /// Creates a nameless file in the memory file system at `directory`.
    fn create_unnamed_file(directory: &Path) -> io::Result<Self> {
        let directory = open_memory_directory(directory)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = retry_on_intr(|| rustix::fs::openat(&directory, ".", flags, PRIVATE))?;
        Self::from_empty_file(file, ScratchPath::Descriptor)
    }

    /// Creates a file named `name`, which must be new, in the memory file system at `directory`. First removes the
    /// files that killed processes left there.
    fn create_hidden_file(directory: &Path, name: &str) -> io::Result<Self> {
        let memory_dir = open_memory_directory(directory)?;
        hidden_file::remove_abandoned_dumps(&memory_dir)?;
        let file = hidden_file::create_locked_file(&memory_dir, name)?;
        Self::from_empty_file(file, ScratchPath::Hidden(directory.join(name)))
    }

    /// Path under which the allocator opens the file.
    ///
    /// # Errors
    /// `Io`: the file has no path, or the program has closed the descriptor. In the second case, its number may now
    /// belong to a file of the program.
    pub(crate) fn path(&self) -> Result<CString> {
        let path = match &self.name {
            ScratchPath::Descriptor => {
                let file = require_open_file(&self.file)
                    .map_err(|error| Error::io("find the memory for the dump", &error))?;
                format!("/proc/thread-self/fd/{}", file.as_raw_fd()).into_bytes()
            }
            ScratchPath::Hidden(path) => path.as_os_str().as_bytes().to_vec(),
            ScratchPath::None => {
                let message = "without /proc an allocator can only write to a name, and neither \
                               /dev/shm nor the dump directory is on a memory file system";
                return Err(Error::new(ErrorKind::Io, message).with_remedy(
                    "mount /proc, or a tmpfs at /dev/shm, where this program sees it",
                ));
            }
        };
        Ok(CString::new(path).expect("an open path has no NUL"))
    }

    /// Sets the file's position to its start, and returns the file. Fails if the program closed the descriptor.
    pub(crate) fn rewind_file(&self) -> io::Result<&File> {
        let mut file = require_open_file(&self.file)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }

    /// Abandons the dump if too little memory is left for it. `shortage` gets the number of bytes written so far, and
    /// returns an error if the memory left does not suffice for the rest. Returns false once the allocator has finished
    /// writing, and true before.
    ///
    /// While an abandoned dump is still being written, each call truncates the file to release its memory, so the
    /// output is discarded. The allocator never sees an error, because some allocators abort on one.
    pub(crate) fn abandon_on_shortage(&self, shortage: impl FnOnce(u64) -> Option<Error>) -> bool {
        let mut progress = lock(&self.progress);
        match &*progress {
            ScratchState::Writing => match shortage(self.written_bytes()) {
                Some(error) => *progress = ScratchState::Abandoned(error),
                None => return true,
            },
            ScratchState::Abandoned(_) => {}
            ScratchState::Done => return false,
        }
        let emptied = self
            .file
            .get()
            .and_then(|file| rustix::fs::ftruncate(file, 0));
        if let Err(errno) = emptied {
            log::warn!("failed to release the memory of a dump: {errno}");
        }
        true
    }

    /// Size of the file in bytes; 0 if the program has closed the descriptor.
    fn written_bytes(&self) -> u64 {
        let stat = self.file.get().and_then(rustix::fs::fstat);
        stat.map_or(0, |stat| stat.st_size.unsigned_abs())
    }

    /// Marks the writing as finished: the memory is now kept until it is read.
    ///
    /// # Errors
    /// The error that abandoned the dump, if the memory ran short.
    pub(crate) fn finish_writing(&self) -> Result<()> {
        let mut progress = lock(&self.progress);
        if let ScratchState::Abandoned(error) = &*progress {
            return Err(error.clone());
        }
        *progress = ScratchState::Done;
        Ok(())
    }

    /// Returns a reader of the first `length` bytes. It releases the file's memory as it reads, because the copy of
    /// these bytes needs as much memory.
    pub(crate) fn draining_reader(&self, length: u64) -> impl Read {
        DrainingReader {
            reader: self.prefix_reader(length),
            punched: 0,
        }
    }

    /// Returns a reader of the first `length` bytes, which releases no memory.
    pub(crate) fn prefix_reader(&self, length: u64) -> PrefixReader<'_> {
        PrefixReader {
            file: &self.file,
            position: 0,
            length,
        }
    }

    /// Completes the file with the end of `body`: the file already holds the first `length` bytes of `body`, so only
    /// the bytes after these are appended. Returns the file, reopened for reading only, and its length in bytes. A file
    /// without a path cannot be reopened, so it is sealed (`F_SEAL_WRITE`) instead.
    ///
    /// # Errors
    /// Memory is exhausted, or `body` cannot be read.
    pub(crate) fn complete_and_reopen_read_only(
        &self,
        length: u64,
        body: &mut dyn Read,
    ) -> io::Result<(File, u64)> {
        // Reads and discards the part that the file already has.
        copy_in_pieces(&mut body.take(length), &mut io::sink())?;
        let mut file = require_open_file(&self.file)?;
        // Discards the text that an allocator appended to the profile.
        file.set_len(length)?;
        file.seek(SeekFrom::Start(length))?;
        let tail = copy_in_pieces(body, &mut file)?;
        let Ok(path) = self.path() else {
            let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(file, seals)?;
            file.rewind()?;
            return Ok((file.try_clone()?, length + tail));
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = retry_on_intr(|| rustix::fs::openat(CWD, &path, flags, Mode::empty()))
            .and_then(move_above_stdio)?;
        Ok((File::from(opened), length + tail))
    }

    /// Error that explains why jemalloc could not write: the program closed the descriptor, or the kernel refuses.
    /// jemalloc reports EFAULT for every file error, so this opens the path again and appends a page of zeros. `None` if
    /// both succeed.
    pub(crate) fn probe_write_error(&self) -> Option<io::Error> {
        const PAGE: [u8; 4096] = [0; 4096];
        let probe = || {
            let mut file = require_open_file(&self.file)?;
            let path = self.path().map_err(io::Error::other)?;
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            retry_on_intr(|| rustix::fs::openat(CWD, &path, flags, PRIVATE))?;
            file.seek(SeekFrom::End(0))?;
            file.write_all(&PAGE)
        };
        probe().err()
    }
}

impl Drop for Scratch {
    /// Removes the file's hidden name, if it has one. An error is only logged.
    fn drop(&mut self) {
        if let ScratchPath::Hidden(path) = &self.name
            && let Err(errno) = rustix::fs::unlinkat(CWD, path, AtFlags::empty())
        {
            log::warn!("failed to remove {}: {errno}", path.display());
        }
    }
}

/// Returns the open file. If the program closed the descriptor, the error names this cause: EBADF alone would look like
/// an error of memprof's. Fails otherwise with that of fstat(2).
fn require_open_file(file: &GuardedFd<File>) -> io::Result<&File> {
    file.get().map_err(|errno| match errno {
        Errno::BADF => io::Error::other(
            "the program closed memprof's descriptor of it meanwhile (EBADF); try again",
        ),
        errno => errno.into(),
    })
}

/// `Io` error if no memory file can be created. `cause` is the error of `memfd_create(2)`.
fn no_memory_file_error(cause: &io::Error) -> Error {
    let act = "create a memory file for the dump (memfd_create)";
    Error::io_for_operation(Operation::MemoryFile, act, cause)
}

/// Opens a directory of a memory file system.
///
/// # Errors
/// `Unsupported` if the file system is not a tmpfs. Otherwise the kernel's error.
fn open_memory_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
        .and_then(move_above_stdio)?;
    if rustix::fs::fstatfs(&directory)?.f_type != TMPFS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(directory)
}

/// Reads the first `length` bytes of a file, without using the file's own position.
pub(crate) struct PrefixReader<'a> {
    file: &'a GuardedFd<File>,
    position: u64,
    length: u64,
}

impl Read for PrefixReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = usize::try_from(self.length - self.position).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(remaining);
        let read = require_open_file(self.file)?.read_at(&mut buffer[..wanted], self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

/// Reader that releases the file's memory once it has read it. `punched` bytes are released so far.
struct DrainingReader<'a> {
    reader: PrefixReader<'a>,
    punched: u64,
}

impl Read for DrainingReader<'_> {
    /// First releases the memory of the bytes that earlier calls returned, in whole pieces of [`PUNCH_SIZE`].
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = (self.reader.position - self.punched) / PUNCH_SIZE * PUNCH_SIZE;
        if length > 0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the kernel refuses, all memory is released when the file is closed.
            let file = self.reader.file.get();
            let punched =
                file.and_then(|file| rustix::fs::fallocate(file, flags, self.punched, length));
            if let Err(errno) = punched {
                log::debug!("the memory of a dump is kept until its end: {errno}");
            }
            self.punched += length;
        }
        self.reader.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn memory_of(scratch: &Scratch) -> u64 {
        scratch.file.get().unwrap().metadata().unwrap().blocks() * 512
    }

    #[test]
    fn drained_bytes_take_no_memory() {
        let scratch = Scratch::create_memfd().unwrap();
        let text: Vec<u8> = (0..8 * PUNCH_SIZE).map(|byte| (byte % 251) as u8).collect();
        scratch.rewind_file().unwrap().write_all(&text).unwrap();
        let length = text.len() - 7;
        let mut drain = scratch.draining_reader(length as u64);
        let mut read = Vec::new();
        let mut piece = vec![0; 100_000];
        let mut most = 0;
        while read.len() < length {
            let count = drain.read(&mut piece).unwrap();
            most = most.max(memory_of(&scratch) + read.len() as u64);
            read.extend_from_slice(&piece[..count]);
        }
        assert_eq!(drain.read(&mut piece).unwrap(), 0);
        assert!(read == text[..length]);
        assert!(most <= 9 * PUNCH_SIZE, "{most} bytes, the copy with them");
        assert!(memory_of(&scratch) <= 2 * PUNCH_SIZE);
    }

    #[test]
    fn memory_of_abandoned_dump_is_released_until_allocator_finishes() {
        let scratch = Scratch::create_memfd().unwrap();
        let write = || {
            let written = (&scratch.file).write_all(&[7; 100_000]);
            written.expect("an allocator may abort");
        };
        let shortage = |written| {
            assert_eq!(written, 100_000);
            Some(Error::new(ErrorKind::Io, "it is short"))
        };
        write();
        scratch.abandon_on_shortage(|_| None);
        assert!(memory_of(&scratch) > 0);
        scratch.abandon_on_shortage(shortage);
        assert_eq!(memory_of(&scratch), 0);
        write();
        scratch.abandon_on_shortage(|_| None);
        assert_eq!(memory_of(&scratch), 0);
        assert_eq!(scratch.finish_writing().unwrap_err().message, "it is short");
    }

    #[test]
    fn finished_dump_is_never_abandoned() {
        let scratch = Scratch::create_memfd().unwrap();
        (&scratch.file).write_all(b"dump").unwrap();
        scratch.finish_writing().unwrap();
        assert!(!scratch.abandon_on_shortage(|_| panic!("there was no write")));
        let mut text = String::new();
        scratch
            .draining_reader(4)
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "dump");
    }

    #[test]
    fn complete_appends_in_place_and_opens_read_only() {
        for name in [ScratchPath::Descriptor, ScratchPath::None] {
            let scratch = Scratch::create_memfd_with_path(name).unwrap();
            (&scratch.file).write_all(b"profile, and more").unwrap();
            let mut body = scratch.prefix_reader(7).chain(&b" and its end"[..]);
            let (mut file, length) = scratch.complete_and_reopen_read_only(7, &mut body).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!((&*text, length), ("profile and its end", 19));
            assert!(file.write_all(b"no").is_err(), "for reading only");
        }
    }

    #[test]
    fn closed_descriptor_is_named_as_cause() {
        let scratch = Scratch::create_memfd().unwrap();
        (&scratch.file).write_all(b"dump").unwrap();
        assert!(scratch.probe_write_error().is_none());
        let descriptor = scratch.file.get().unwrap().as_raw_fd();
        nix::unistd::close(descriptor).unwrap();
        let errors = [
            scratch.probe_write_error().unwrap().to_string(),
            scratch.path().unwrap_err().to_string(),
            scratch.rewind_file().unwrap_err().to_string(),
            scratch
                .prefix_reader(4)
                .read(&mut [0])
                .unwrap_err()
                .to_string(),
        ];
        for error in errors {
            assert!(error.contains("the program closed memprof's"), "{error}");
        }
    }

    #[test]
    fn path_without_proc_explains_why() {
        let scratch = Scratch::create_memfd_with_path(ScratchPath::None).unwrap();
        let refused = scratch.path().unwrap_err().to_string();
        assert!(refused.contains("without /proc an allocator"), "{refused}");
    }

    #[test]
    fn scratch_outside_memory_file_system_is_refused() {
        let memory = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
        let hidden = Scratch::create_hidden_file(memory.path(), ".scratch").unwrap();
        let unnamed = Scratch::create_unnamed_file(memory.path()).unwrap();
        let names = || std::fs::read_dir(memory.path()).unwrap().count();
        assert_eq!(names(), 1);
        drop((hidden, unnamed));
        assert_eq!(names(), 0);
        for other in ["/proc", "/proc/self/fd", "/no"] {
            assert!(Scratch::create_hidden_file(Path::new(other), ".scratch").is_err());
            assert!(Scratch::create_unnamed_file(Path::new(other)).is_err());
        }
    }
}
