//! Where an allocator writes a dump: in memory, and nowhere else.
//!
//! jemalloc writes while it holds locks that every allocating thread needs, so the target must
//! not block: never a disk. The memory is the host's, which may be short of it: while the
//! allocator writes, the thread that waits for it [looks](Scratch::poll_headroom) what is left, and takes
//! the pages back before the kernel would end the process.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use memprof_own::{GuardedFd, above_stdio};
use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::dumps::hidden::{self, PRIVATE};
use crate::dumps::publish::copy;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;

/// Where a memory file system is mounted, as a rule (`shm_open(3)`).
const SHARED_MEMORY: &str = "/dev/shm";
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;

/// Memory is given back by so much at a time: a huge page, which goes as a whole.
const PUNCHED: u64 = 2 << 20;

/// A file in memory that an allocator writes to, under a name that only this process can use.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: GuardedFd<File>,
    name: Name,
    progress: Mutex<ScratchState>,
}

#[derive(Debug)]
enum Name {
    /// By its descriptor. `thread-self`, because `self` has no descriptors once the main thread
    /// has exited.
    Descriptor,
    /// A hidden file, where there is no /proc.
    Hidden(PathBuf),
    /// Without /proc and a memory file system: for whoever writes to descriptors.
    None,
}

#[derive(Debug)]
enum ScratchState {
    /// The allocator may be writing.
    Writing,
    /// Too little memory is left: what it writes is thrown away.
    Abandoned(Error),
    /// It has written all of it.
    Done,
}

impl Scratch {
    /// One for the dump that is to be kept in `directory` under a name like `hidden`.
    ///
    /// # Errors
    /// There is no memory file, or none that has a name.
    pub(crate) fn open(directory: &Path, hidden: &str) -> Result<Self> {
        if Path::new("/proc/thread-self/fd").exists() {
            // ENOSYS or EPERM under a strict seccomp filter.
            return Self::memory().or_else(|memory| {
                Self::unnamed(Path::new(SHARED_MEMORY)).map_err(|_| no_memory_file(&memory))
            });
        }
        let places = [directory, Path::new(SHARED_MEMORY)];
        let hidden = places.map(|place| Self::hidden(place, hidden));
        match hidden.into_iter().find_map(io::Result::ok) {
            Some(hidden) => Ok(hidden),
            None => Self::memory_named(Name::None).map_err(|memory| no_memory_file(&memory)),
        }
    }

    fn new(file: OwnedFd, name: Name) -> io::Result<Self> {
        Ok(Self {
            file: GuardedFd::new(file.into())?,
            name,
            progress: Mutex::new(ScratchState::Writing),
        })
    }

    fn memory() -> io::Result<Self> {
        Self::memory_named(Name::Descriptor)
    }

    fn memory_named(name: Name) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = retry_on_intr(|| rustix::fs::memfd_create("memprof-dump", flags))?;
        rustix::fs::fchmod(&memory, PRIVATE)?;
        Self::new(memory, name)
    }

    /// In the memory file system at `directory`, without a name there.
    fn unnamed(directory: &Path) -> io::Result<Self> {
        let place = memory_directory(directory)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = retry_on_intr(|| rustix::fs::openat(&place, ".", flags, PRIVATE))?;
        Self::new(file, Name::Descriptor)
    }

    /// In the memory file system at `directory`, under the hidden name `name`, which must be new.
    fn hidden(directory: &Path, name: &str) -> io::Result<Self> {
        let place = memory_directory(directory)?;
        // A process that was killed meanwhile left its memory there.
        hidden::sweep(&place)?;
        let file = hidden::create(&place, name)?;
        Self::new(file, Name::Hidden(directory.join(name)))
    }

    /// The path to hand to the allocator.
    ///
    /// # Errors
    /// It has no name; the program closed its descriptor, whose number may be that of a file of the program's.
    pub(crate) fn path(&self) -> Result<CString> {
        let path = match &self.name {
            Name::Descriptor => {
                let file = self.file.get();
                let file =
                    file.map_err(|errno| Error::io("find the memory for the dump", &errno.into()))?;
                format!("/proc/thread-self/fd/{}", file.as_raw_fd()).into_bytes()
            }
            Name::Hidden(path) => path.as_os_str().as_bytes().to_vec(),
            Name::None => {
                let message = "without /proc an allocator can only write to a name, and neither \
                               /dev/shm nor the dump directory is on a memory file system";
                return Err(Error::new(ErrorKind::Io, message)
                    .remedy("mount /proc, or a tmpfs at /dev/shm, where this program sees it"));
            }
        };
        Ok(CString::new(path).expect("an open path has no NUL"))
    }

    /// The file, read or written from its start.
    pub(crate) fn rewound(&self) -> io::Result<&File> {
        let mut file = self.file.get()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }

    /// Asks `short` whether the process may still have the rest of the dump, of which so many bytes
    /// are written. If it says why not, the memory is given back, and what goes on to be written
    /// too. The allocator never sees an error, which some are built to abort at. False when there
    /// is nothing to look after any more.
    pub(crate) fn poll_headroom(&self, short: impl FnOnce(u64) -> Option<Error>) -> bool {
        let mut progress = lock(&self.progress);
        match &*progress {
            ScratchState::Writing => match short(self.written_bytes()) {
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
            log::warn!("failed to give the memory of a dump back: {errno}");
        }
        true
    }

    fn written_bytes(&self) -> u64 {
        let stat = self.file.get().and_then(rustix::fs::fstat);
        stat.map_or(0, |stat| stat.st_size.unsigned_abs())
    }

    /// The allocator has written: from now on the memory is kept until it was read.
    ///
    /// # Errors
    /// Too little memory was left.
    pub(crate) fn finish_writing(&self) -> Result<()> {
        let mut progress = lock(&self.progress);
        if let ScratchState::Abandoned(error) = &*progress {
            return Err(error.clone());
        }
        *progress = ScratchState::Done;
        Ok(())
    }

    /// Reads the first `length` bytes, and gives back the memory of what was read: the copy of it
    /// takes as much.
    pub(crate) fn drain(&self, length: u64) -> impl Read {
        DrainingReader {
            start: self.start(length),
            punched: 0,
        }
    }

    /// Reads the first `length` bytes, which stay.
    pub(crate) fn start(&self, length: u64) -> PrefixReader<'_> {
        PrefixReader {
            file: &self.file,
            at: 0,
            length,
        }
    }

    /// Reads `body`, of which it has the first `length` bytes already, writes the rest behind them, and opens it once
    /// more, for reading only; where it has no name, it is sealed (`F_SEAL_WRITE`).
    ///
    /// # Errors
    /// There is no memory left, or the body cannot be read.
    pub(crate) fn complete(&self, length: u64, body: &mut dyn Read) -> io::Result<(File, u64)> {
        copy(&mut body.take(length), &mut io::sink())?;
        let mut file = self.file.get()?;
        file.set_len(length)?;
        file.seek(SeekFrom::Start(length))?;
        let tail = copy(body, &mut file)?;
        let Ok(path) = self.path() else {
            let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(file, seals)?;
            file.rewind()?;
            return Ok((file.try_clone()?, length + tail));
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = retry_on_intr(|| rustix::fs::openat(CWD, &path, flags, Mode::empty()))
            .and_then(above_stdio)?;
        Ok((File::from(opened), length + tail))
    }

    /// Why jemalloc could not write: it reports every file trouble as EFAULT, so do again what
    /// it did, open and write, and see what the kernel says.
    pub(crate) fn write_errno(&self) -> Option<Errno> {
        const PAGE: [u8; 4096] = [0; 4096];
        let opened = retry_on_intr(|| {
            let path = self.path().map_err(|_| Errno::BADF)?;
            rustix::fs::openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, PRIVATE)
        });
        opened.err().or_else(|| {
            let at_end = rustix::fs::seek(self.file.get().ok()?, rustix::fs::SeekFrom::End(0));
            at_end
                .and_then(|_| rustix::io::write(self.file.get()?, &PAGE))
                .err()
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Name::Hidden(path) = &self.name
            && let Err(errno) = rustix::fs::unlinkat(CWD, path, AtFlags::empty())
        {
            log::warn!("failed to remove {}: {errno}", path.display());
        }
    }
}

fn no_memory_file(cause: &io::Error) -> Error {
    Error::io("create a memory file for the dump (memfd_create)", cause)
        .or_remedy("allow memfd_create to this program, or mount a tmpfs at /dev/shm")
}

/// Opens a directory, if it is of a memory file system.
fn memory_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory =
        retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())).and_then(above_stdio)?;
    if rustix::fs::fstatfs(&directory)?.f_type != TMPFS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(directory)
}

/// So many bytes from the start of a file.
pub(crate) struct PrefixReader<'a> {
    file: &'a GuardedFd<File>,
    at: u64,
    length: u64,
}

impl Read for PrefixReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length - self.at).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let read = self.file.get()?.read_at(&mut buffer[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

struct DrainingReader<'a> {
    start: PrefixReader<'a>,
    punched: u64,
}

impl Read for DrainingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = (self.start.at - self.punched) / PUNCHED * PUNCHED;
        if length > 0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // It is only thrift: where the kernel refuses, all goes when the file is closed.
            let file = self.start.file.get();
            let punched =
                file.and_then(|file| rustix::fs::fallocate(file, flags, self.punched, length));
            if let Err(errno) = punched {
                log::debug!("the memory of a dump is kept until its end: {errno}");
            }
            self.punched += length;
        }
        self.start.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn memory_of(scratch: &Scratch) -> u64 {
        scratch.file.get().unwrap().metadata().unwrap().blocks() * 512
    }

    #[test]
    fn what_was_read_takes_no_memory() {
        let scratch = Scratch::memory().unwrap();
        let text: Vec<u8> = (0..8 * PUNCHED).map(|byte| (byte % 251) as u8).collect();
        scratch.rewound().unwrap().write_all(&text).unwrap();
        let length = text.len() - 7;
        let mut drain = scratch.drain(length as u64);
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
        assert!(most <= 9 * PUNCHED, "{most} bytes, the copy with them");
        assert!(memory_of(&scratch) <= 2 * PUNCHED);
    }

    #[test]
    fn memory_that_becomes_short_is_given_back_until_the_allocator_is_done() {
        let scratch = Scratch::memory().unwrap();
        let write = || {
            let written = (&scratch.file).write_all(&[7; 100_000]);
            written.expect("an allocator may abort");
        };
        let short = |written| {
            assert_eq!(written, 100_000);
            Some(Error::new(ErrorKind::Io, "it is short"))
        };
        write();
        scratch.poll_headroom(|_| None);
        assert!(memory_of(&scratch) > 0);
        scratch.poll_headroom(short);
        assert_eq!(memory_of(&scratch), 0);
        write();
        scratch.poll_headroom(|_| None);
        assert_eq!(memory_of(&scratch), 0);
        assert_eq!(scratch.finish_writing().unwrap_err().message, "it is short");
    }

    #[test]
    fn a_whole_dump_is_never_thrown_away() {
        let scratch = Scratch::memory().unwrap();
        (&scratch.file).write_all(b"dump").unwrap();
        scratch.finish_writing().unwrap();
        assert!(!scratch.poll_headroom(|_| panic!("there was no write")));
        let mut text = String::new();
        scratch.drain(4).read_to_string(&mut text).unwrap();
        assert_eq!(text, "dump");
    }

    #[test]
    fn a_dump_is_completed_where_it_lies() {
        for name in [Name::Descriptor, Name::None] {
            let scratch = Scratch::memory_named(name).unwrap();
            (&scratch.file).write_all(b"profile, and more").unwrap();
            let mut body = scratch.start(7).chain(&b" and its end"[..]);
            let (mut file, length) = scratch.complete(7, &mut body).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!((&*text, length), ("profile and its end", 19));
            assert!(file.write_all(b"no").is_err(), "for reading only");
        }
    }

    #[test]
    fn without_a_name_an_allocator_is_told_why_it_cannot_write() {
        let scratch = Scratch::memory_named(Name::None).unwrap();
        let refused = scratch.path().unwrap_err().to_string();
        assert!(refused.contains("without /proc an allocator"), "{refused}");
    }

    #[test]
    fn only_a_memory_file_system_will_do() {
        let memory = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
        let hidden = Scratch::hidden(memory.path(), ".scratch").unwrap();
        let unnamed = Scratch::unnamed(memory.path()).unwrap();
        let names = || std::fs::read_dir(memory.path()).unwrap().count();
        assert_eq!(names(), 1);
        drop((hidden, unnamed));
        assert_eq!(names(), 0);
        for other in ["/proc", "/proc/self/fd", "/no"] {
            assert!(Scratch::hidden(Path::new(other), ".scratch").is_err());
            assert!(Scratch::unnamed(Path::new(other)).is_err());
        }
    }
}
