//! The body of a reply: bytes, or a file that is passed on as it is.

use std::fs::File;
use std::io::{self, Read};
#[cfg(feature = "control")]
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

#[cfg(feature = "control")]
use memprof_own::above_stdio;
use memprof_plugin_abi::COPY_LIMIT;
use rustix::fs::{FileType, OFlags, SealFlags};

/// A larger body does not fit a line of the control protocol: it is passed as a file.
pub(crate) const INLINE_LIMIT: usize = 64 * 1024;

/// What a plugin replied.
#[derive(Debug)]
pub enum Body {
    /// Bytes, [`COPY_LIMIT`] at the most.
    Bytes(Vec<u8>),
    /// A file that nobody writes to any more, open for reading at its start, and the number of its
    /// bytes that are the body.
    File(File, u64),
}

impl Default for Body {
    fn default() -> Self {
        Self::Bytes(Vec::new())
    }
}

impl Body {
    /// Appends bytes.
    ///
    /// # Errors
    /// They are too many, the memory is full, or the body is a file.
    pub fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        let Self::Bytes(bytes) = self else {
            return Err(invalid("the body is a file already"));
        };
        let length = bytes.len() as u64 + chunk.len() as u64;
        if length > COPY_LIMIT {
            let message = format!("a body has at most {COPY_LIMIT} bytes, this one {length}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        bytes.try_reserve(chunk.len())?;
        bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// A body that is the first `size` bytes of the file `fd`, of which it has a descriptor of its
    /// own.
    ///
    /// # Errors
    /// `InvalidInput`: it is not a file of that size that only can be read. No descriptor is left.
    pub fn from_file(fd: BorrowedFd<'_>, size: u64) -> io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid("it is not a regular file"));
        }
        if stat.st_size.unsigned_abs() < size {
            return Err(invalid("it is shorter than announced"));
        }
        if !is_read_only(fd)? && !is_sealed(fd) {
            return Err(invalid("it can still be written to"));
        }
        Ok(Self::File(File::from(fd.try_clone_to_owned()?), size))
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, length) => *length,
        }
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file, or a sealed one in memory with the bytes, positioned at its start: nobody can
    /// change it through this descriptor. Bytes are written on the calling thread, so that a small
    /// `RLIMIT_FSIZE` sends it SIGXFSZ: call it on a thread that blocks signals.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptor left.
    #[cfg(feature = "control")]
    pub(crate) fn into_file(self) -> io::Result<File> {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::File(file, _) => return Ok(file),
        };
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("memprof-reply", flags).and_then(above_stdio)?;
        let mut file = File::from(file);
        file.write_all(&bytes)?;
        file.seek(SeekFrom::Start(0))?;
        rustix::fs::fcntl_add_seals(&file, SEALED | SealFlags::SEAL | SealFlags::GROW)?;
        Ok(file)
    }

    /// The bytes as text; what is not UTF-8 is replaced. Of a file it tells where that is.
    pub fn into_text(self) -> String {
        match self {
            Self::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Self::File(file, length) => format!("{length} bytes, in {}", name_of(&file)),
        }
    }

    /// The bytes, to be read one after the other.
    pub fn into_reader(self) -> Box<dyn Read + Send> {
        match self {
            Self::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            Self::File(file, length) => Box::new(file.take(length)),
        }
    }

    /// All of it, read into memory.
    ///
    /// # Errors
    /// The body is a file that has too many, and that the error names; or it cannot be read.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::File(file, length) if length > COPY_LIMIT => {
                let message = format!(
                    "the reply has {length} bytes, which is too large to be copied (at most \
                     {COPY_LIMIT}); read {}",
                    name_of(&file)
                );
                Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
            }
            Self::File(file, length) => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(length as usize)?;
                file.take(length).read_to_end(&mut bytes)?;
                Ok(bytes)
            }
        }
    }
}

/// Who reads such a file sees no change.
const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::WRITE);

fn is_read_only(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(flags & (OFlags::RWMODE | OFlags::PATH) == OFlags::RDONLY)
}

fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // EINVAL for what is no memfd.
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALED))
}

fn name_of(file: &File) -> String {
    let link = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let path = std::fs::read_link(link);
    let path = path.unwrap_or_else(|_| PathBuf::from("a file of unknown name"));
    path.display().to_string()
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    /// A file of so many bytes, which nobody wrote to a disk.
    fn file_of(length: u64) -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("dump.heap");
        File::create(&path).unwrap().set_len(length).unwrap();
        (place, path)
    }

    #[test]
    fn bytes_beyond_the_limit_are_refused() {
        let mut body = Body::default();
        body.write(&vec![7; COPY_LIMIT as usize]).unwrap();
        let refused = body.write(&[8]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(body.len(), COPY_LIMIT);
    }

    #[test]
    fn a_large_file_is_passed_and_not_copied() {
        let (_place, path) = file_of(COPY_LIMIT + 1);
        let open = || {
            let file = File::open(&path).unwrap();
            Body::from_file(file.as_fd(), COPY_LIMIT + 1).unwrap()
        };
        assert_eq!(open().len(), COPY_LIMIT + 1);
        let refused = open().into_bytes().unwrap_err().to_string();
        assert!(
            refused.ends_with(&format!("read {}", path.display())),
            "{refused}"
        );
        let text = open().into_text();
        assert_eq!(text, format!("16777217 bytes, in {}", path.display()));
    }

    #[test]
    fn a_file_that_may_change_or_is_none_is_refused() {
        let (place, path) = file_of(3);
        let check = |file: File, size, expected: &str| {
            let refused = Body::from_file(file.as_fd(), size).unwrap_err();
            assert_eq!(refused.to_string(), expected);
        };
        let writable = || File::options().read(true).write(true).open(&path).unwrap();
        check(writable(), 3, "it can still be written to");
        check(
            File::open(&path).unwrap(),
            4,
            "it is shorter than announced",
        );
        check(
            File::open(place.path()).unwrap(),
            0,
            "it is not a regular file",
        );
        check(
            File::open("/dev/zero").unwrap(),
            0,
            "it is not a regular file",
        );
        let read_only = File::open(&path).unwrap();
        let body = Body::from_file(read_only.as_fd(), 2).unwrap();
        assert_eq!(body.into_bytes().unwrap(), [0, 0]);
    }

    #[cfg(feature = "control")]
    #[test]
    fn passed_bytes_are_sealed() {
        let mut body = Body::default();
        body.write(b"dump").unwrap();
        let mut file = body.into_file().unwrap();
        let refused = file.write_all(b"x").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(Body::from_file(file.as_fd(), 4).is_ok());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "dump");
    }
}
