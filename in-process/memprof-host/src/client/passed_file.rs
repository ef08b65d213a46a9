//! A file that a host passed in place of a reply's bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// The largest body that is taken: a sparse file announces as much as it likes.
const LIMIT: u64 = 4 << 30;

/// A regular file of the length that was announced, be it in memory or on a disk. At most that
/// much is read, at positions of our own: a hostile host may still write to it and move what the
/// descriptor shares with its own.
#[derive(Debug)]
pub struct PassedFile {
    file: File,
    length: u64,
    position: u64,
}

impl PassedFile {
    /// Takes `file`, which must have `length` bytes.
    ///
    /// # Errors
    /// It is no regular file, or of another length, or longer than 4 GiB.
    pub fn new(file: File, length: u64) -> io::Result<Self> {
        let refused = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return refused("the passed descriptor is not a regular file".to_owned());
        }
        if metadata.len() != length {
            return refused(format!(
                "the passed file has {} bytes, announced were {length}",
                metadata.len()
            ));
        }
        if length > LIMIT {
            return refused(format!(
                "the passed file has {length} bytes, the limit is {LIMIT}"
            ));
        }
        Ok(Self {
            file,
            length,
            position: 0,
        })
    }

    /// The number of its bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The same file for another reader, from its start.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn reopen(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            length: self.length,
            position: 0,
        })
    }

    /// True when it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Read for PassedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length - self.position).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
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

    fn file_with(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn what_is_no_file_of_the_announced_length_is_refused() {
        let check = |file: File, length: u64, expected: &str| {
            let refused = PassedFile::new(file, length).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
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
    fn a_file_that_changes_while_it_is_read_gives_no_more_than_announced() {
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
        let cut = passed.read_to_string(&mut text).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
