//! Object of the store, as the Parquet reader reads it: every length is from the file, and limited here.

use std::io::Cursor;
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::store::{Object, ProfileStore};

/// Size in bytes up to which a file is read at once, because a further request would take longer.
const WHOLE_FILE_LIMIT: u64 = 4 << 20;
/// Bytes that are read if the needed length is unknown.
const DEFAULT_READ_SIZE: u64 = 64 << 10;
/// Most bytes of a footer, which the parser turns into many times as many. The largest part of one of memprof's own is
/// the list of sources, see [`MAX_SOURCES`](crate::compact::MAX_SOURCES).
const MAX_FOOTER_BYTES: u64 = 32 << 20;
/// Most bytes of a page, or of the index of all pages. Those of memprof's own files have some MiB.
const MAX_READ_BYTES: u64 = 256 << 20;
/// Bytes behind the footer at the end of a file: the footer's length, and a magic number of four bytes.
const TAIL_BYTES: u64 = 8;

/// Object of the store, opened for the Parquet reader.
pub(crate) struct ObjectReader {
    store: Arc<ProfileStore>,
    name: String,
    size: u64,
    content: Option<Bytes>,
}

impl ObjectReader {
    /// Opens an object. A small one is read whole. Fails if the store fails.
    pub(crate) fn open(store: &Arc<ProfileStore>, object: &Object) -> anyhow::Result<Self> {
        let content = match object.size <= WHOLE_FILE_LIMIT {
            // It may have grown since it was listed.
            true => Some(store.read(&object.name, WHOLE_FILE_LIMIT)?),
            false => None,
        };
        Ok(Self {
            store: Arc::clone(store),
            name: object.name.clone(),
            size: content
                .as_ref()
                .map_or(object.size, |bytes| bytes.len() as u64),
            content,
        })
    }

    /// Reads the footer of a Parquet file. The magic number at the end of the file is not checked. Fails if the file is
    /// shorter than its footer's length says, or the footer is larger than [`MAX_FOOTER_BYTES`] (32 MiB).
    pub(crate) fn read_footer(&self) -> anyhow::Result<Bytes> {
        let tail = self.size.checked_sub(TAIL_BYTES);
        let tail = tail.context("it is truncated")?;
        let length = self.read(tail, 4)?;
        let length = u64::from(u32::from_le_bytes(length[..].try_into()?));
        let start = tail.checked_sub(length).context("it is truncated")?;
        ensure!(
            length <= MAX_FOOTER_BYTES,
            "it is too large: its footer has {length} bytes, and at most {MAX_FOOTER_BYTES} are read"
        );
        Ok(self.read(start, length)?)
    }

    /// Reads a range of bytes, from memory if the file was read whole. Fails if the range ends beyond the file or is
    /// longer than [`MAX_READ_BYTES`] (256 MiB), or the store fails.
    fn read(&self, start: u64, length: u64) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length).filter(|end| *end <= self.size);
        let end = end.ok_or_else(|| ParquetError::EOF("a part lies behind the end".to_owned()))?;
        if length > MAX_READ_BYTES {
            return Err(ParquetError::General(format!(
                "a part is too large: it has {length} bytes, and at most {MAX_READ_BYTES} are read"
            )));
        }
        match &self.content {
            Some(bytes) => Ok(bytes.slice(start as usize..end as usize)),
            None => self
                .store
                .read_range(&self.name, start, length)
                .map_err(|error| ParquetError::General(format!("{error:#}"))),
        }
    }
}

impl Length for ObjectReader {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for ObjectReader {
    type T = Cursor<Bytes>;

    /// Returns a reader of the bytes from `start` on, at most [`DEFAULT_READ_SIZE`] of them.
    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let length = self.size.saturating_sub(start).min(DEFAULT_READ_SIZE);
        self.read(start, length).map(Cursor::new)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.read(start, length as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Opens a file of a store that takes no space on the disk: `size` zero bytes, and at their end those of `tail`.
    fn open_sparse_file(size: u64, tail: &[u8]) -> (tempfile::TempDir, ObjectReader) {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("x")).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(tail, size - tail.len() as u64).unwrap();
        let store = ProfileStore::open(&format!("file://{}", directory.path().display())).unwrap();
        let object = store.find_object("x").unwrap().unwrap();
        let reader = ObjectReader::open(&Arc::new(store), &object).unwrap();
        (directory, reader)
    }

    #[test]
    fn footer_of_any_length_is_not_read() {
        let check = |size: u64, length: u64, expected: Result<u64, &str>| {
            let length = u32::try_from(length).unwrap();
            let tail = [&length.to_le_bytes()[..], b"PAR1"].concat();
            let (_directory, reader) = open_sparse_file(size, &tail);
            match (reader.read_footer(), expected) {
                (Ok(footer), Ok(bytes)) => assert_eq!(footer.len() as u64, bytes),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (found, _) => panic!("{size} {length}: {:?}", found.map(|bytes| bytes.len())),
            }
        };
        let large = 3 << 30;
        check(
            large,
            large - TAIL_BYTES,
            Err("its footer has 3221225464 bytes"),
        );
        check(
            large,
            MAX_FOOTER_BYTES + 1,
            Err("its footer has 33554433 bytes"),
        );
        check(large, large, Err("it is truncated"));
        check(large, 100, Ok(100));
        check(TAIL_BYTES, 0, Ok(0));
        check(TAIL_BYTES, 1, Err("it is truncated"));
    }

    #[test]
    fn part_of_any_length_is_not_read() {
        let (_directory, reader) = open_sparse_file(3 << 30, b"");
        let check = |start, length: u64, expected: &str| {
            let error = reader.get_bytes(start, length as usize).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(0, 3 << 30, "a part is too large");
        check(1 << 30, MAX_READ_BYTES + 1, "a part is too large");
        check(1, 3 << 30, "behind the end");
        check(u64::MAX, 1, "behind the end");
    }
}
