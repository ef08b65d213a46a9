//! A file that a host passed instead of a reply's bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Largest accepted body in bytes. It needs a limit because a sparse file may have any length.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// A regular file of the announced length, in memory or on a disk. Reads never go beyond that length, and use positions
/// of their own: a hostile host may still write to the file and move the offset that it shares with the descriptor.
#[derive(Debug)]
pub struct PassedFile {
    file: File,
    length: u64,
    position: u64,
}

impl PassedFile {
    /// Takes over a file that a host passed, if it has `length` bytes.
    ///
    /// # Errors
    /// `InvalidData` if the file is not a regular one, has another length, or is longer than 4 GiB. Also the errors of
    /// fstat(2).
    pub fn new(file: File, length: u64) -> io::Result<Self> {
        let invalid = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return invalid("the passed descriptor is not a regular file".to_owned());
        }
        if metadata.len() != length {
            return invalid(format!(
                "the passed file has {} bytes, announced were {length}",
                metadata.len()
            ));
        }
        if length > MAX_FILE_BYTES {
            return invalid(format!(
                "the passed file has {length} bytes, the limit is {MAX_FILE_BYTES}"
            ));
        }
        Ok(Self {
            file,
            length,
            position: 0,
        })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns a second reader of the file, which starts at its beginning.
    ///
    /// # Errors
    /// The errors of fcntl(2) for `F_DUPFD_CLOEXEC`: no descriptor is left.
    pub fn reopen(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            length: self.length,
            position: 0,
        })
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Read for PassedFile {
    /// Reads at most to the length that the host announced. Fails with `UnexpectedEof` if the file became shorter.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = usize::try_from(self.length - self.position).unwrap_or(usize::MAX);
        let wanted = remaining.min(buffer.len());
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.file.read_at(&mut buffer[..wanted], self.position)?;
        if read == 0 {
            let message = "the passed file became shorter while it was read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.position += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    /// Creates a temporary file with these bytes. Its position is at their end.
    fn file_with(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn file_of_other_kind_or_length_is_refused() {
        let check = |file: File, length: u64, expected: &str| {
            let error = PassedFile::new(file, length).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let zero = || File::open("/dev/zero").unwrap();
        check(zero(), 0, "not a regular file");
        check(zero(), 1 << 30, "not a regular file");
        let (reader, _writer) = io::pipe().unwrap();
        check(
            File::from(std::os::fd::OwnedFd::from(reader)),
            7,
            "not a regular file",
        );
        check(file_with(b"dump"), 5, "has 4 bytes, announced were 5");
        check(file_with(b"dump"), 3, "has 4 bytes, announced were 3");
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(1 << 40).unwrap();
        check(sparse, 1 << 40, "the limit is");
    }

    #[test]
    fn read_of_changing_file_stays_within_announced_length() {
        let mut file = file_with(b"dump");
        let shared = file.try_clone().unwrap();
        let mut text = String::new();
        let mut passed = PassedFile::new(shared, 4).unwrap();
        file.write_all(b" and more").unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "dump");

        let mut passed = PassedFile::new(file.try_clone().unwrap(), 13).unwrap();
        file.set_len(2).unwrap();
        let error = passed.read_to_string(&mut text).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
