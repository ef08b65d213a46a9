//! Bodies of replies: bytes, or a file that is passed on unchanged.

use std::fs::File;
use std::io::{self, Read};
#[cfg(feature = "control")]
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

#[cfg(feature = "control")]
use memprof_own::move_above_stdio;
use memprof_plugin_abi::COPY_LIMIT;
use rustix::fs::{FileType, OFlags, SealFlags};

/// Largest body, in bytes, that a line of the control protocol contains. Larger bodies are passed as a file.
pub(crate) const INLINE_LIMIT: usize = 64 * 1024;

/// Body of a reply.
#[derive(Debug)]
pub enum Body {
    /// Bytes, at most [`COPY_LIMIT`].
    Bytes(Vec<u8>),
    /// A file to which no process writes any more, open for reading at its start, and the number of its bytes that
    /// belong to the body.
    File(File, u64),
}

impl Default for Body {
    fn default() -> Self {
        Self::Bytes(Vec::new())
    }
}

impl Body {
    /// Appends bytes to a body in memory.
    ///
    /// # Errors
    /// The body would exceed [`COPY_LIMIT`], there is no memory, or the body is a file.
    pub fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        let Self::Bytes(bytes) = self else {
            return Err(invalid_input_error("the body is a file already"));
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

    /// Creates a body from the first `size` bytes of the file `fd`. Duplicates the descriptor.
    ///
    /// # Errors
    /// `InvalidInput` if `fd` is not a regular file, is shorter than `size`, or can still be written to. Also the
    /// errors of fstat(2), and of fcntl(2), `F_GETFL` and `F_DUPFD_CLOEXEC`.
    pub fn from_file(fd: BorrowedFd<'_>, size: u64) -> io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid_input_error("it is not a regular file"));
        }
        if stat.st_size.unsigned_abs() < size {
            return Err(invalid_input_error("it is shorter than announced"));
        }
        if !is_read_only(fd)? && !is_sealed(fd) {
            return Err(invalid_input_error("it can still be written to"));
        }
        Ok(Self::File(File::from(fd.try_clone_to_owned()?), size))
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, length) => *length,
        }
    }

    /// Returns whether the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the file, positioned at its start; for bytes, a new sealed file in memory. Neither can be changed
    /// through the returned descriptor. Writing the bytes under a small `RLIMIT_FSIZE` sends SIGXFSZ to the calling
    /// thread, which must therefore block signals. Fails if no memory or no descriptor is left (`memfd_create(2)`), or if
    /// the bytes exceed that limit.
    #[cfg(feature = "control")]
    pub(crate) fn into_file(self) -> io::Result<File> {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::File(file, _) => return Ok(file),
        };
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("memprof-reply", flags).and_then(move_above_stdio)?;
        let mut file = File::from(file);
        file.write_all(&bytes)?;
        file.seek(SeekFrom::Start(0))?;
        rustix::fs::fcntl_add_seals(&file, SEALED | SealFlags::SEAL | SealFlags::GROW)?;
        Ok(file)
    }

    /// Converts the bytes to text, replacing what is not UTF-8. For a file, returns its size and path.
    pub fn into_text(self) -> String {
        match self {
            Self::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Self::File(file, length) => format!("{length} bytes, in {}", path_of_open_file(&file)),
        }
    }

    /// Returns a reader that ends after the body's bytes, even if its file is longer.
    pub fn into_reader(self) -> Box<dyn Read + Send> {
        match self {
            Self::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            Self::File(file, length) => Box::new(file.take(length)),
        }
    }

    /// Returns all bytes; reads those of a file into memory.
    ///
    /// # Errors
    /// The body is a file larger than [`COPY_LIMIT`], whose path the error contains; or there is no memory for the
    /// bytes; or the file cannot be read.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::File(file, length) if length > COPY_LIMIT => {
                let message = format!(
                    "the reply has {length} bytes, which is too large to be copied (at most \
                     {COPY_LIMIT}); read {}",
                    path_of_open_file(&file)
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

/// Seals of a file in memory whose content cannot change any more.
const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::WRITE);

/// Returns whether the descriptor is open for reading only.
fn is_read_only(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // `F_GETFL` also reports read-only access for an `O_PATH` descriptor, which cannot be read.
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(flags & (OFlags::RWMODE | OFlags::PATH) == OFlags::RDONLY)
}

/// Returns whether `fd` is a file in memory with the seals [`SEALED`].
fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // fcntl(2) fails with EINVAL for any other file.
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALED))
}

/// Returns the path of an open file, from /proc; `a file of unknown name` if it cannot be read.
fn path_of_open_file(file: &File) -> String {
    // `thread-self`, because memprof's threads may have a descriptor table of their own.
    let link = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let path = std::fs::read_link(link);
    let path = path.unwrap_or_else(|_| PathBuf::from("a file of unknown name"));
    path.display().to_string()
}

/// Creates an error of kind `InvalidInput`, for a file that cannot be a body.
fn invalid_input_error(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    /// Creates a sparse file of `length` bytes in a temporary directory.
    fn create_file(length: u64) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dump.heap");
        File::create(&path).unwrap().set_len(length).unwrap();
        (directory, path)
    }

    #[test]
    fn write_beyond_copy_limit_fails() {
        let mut body = Body::default();
        body.write(&vec![7; COPY_LIMIT as usize]).unwrap();
        let error = body.write(&[8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(body.len(), COPY_LIMIT);
    }

    #[test]
    fn large_file_is_not_copied() {
        let (_directory, path) = create_file(COPY_LIMIT + 1);
        let open = || {
            let file = File::open(&path).unwrap();
            Body::from_file(file.as_fd(), COPY_LIMIT + 1).unwrap()
        };
        assert_eq!(open().len(), COPY_LIMIT + 1);
        let error = open().into_bytes().unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("read {}", path.display())),
            "{error}"
        );
        let text = open().into_text();
        assert_eq!(text, format!("16777217 bytes, in {}", path.display()));
    }

    #[test]
    fn writable_short_or_irregular_file_is_refused() {
        let (directory, path) = create_file(3);
        let check = |file: File, size, expected: &str| {
            let error = Body::from_file(file.as_fd(), size).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        let writable = || File::options().read(true).write(true).open(&path).unwrap();
        check(writable(), 3, "it can still be written to");
        check(
            File::open(&path).unwrap(),
            4,
            "it is shorter than announced",
        );
        check(
            File::open(directory.path()).unwrap(),
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
        let error = file.write_all(b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(Body::from_file(file.as_fd(), 4).is_ok());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "dump");
    }
}
