//! Reads binaries that another user may have made, up to a number of bytes: the sizes that headers declare cost
//! their writer nothing, be it a hole, a preallocated file, or one name that many symbols share.

use std::cell::Cell;
use std::io::{Read, Seek};
use std::ops::Range;

use object::{ReadCache, ReadRef};

/// File that fails to be read beyond a limit. Bytes read twice count twice.
#[derive(Debug)]
pub struct LimitedFile<R: Read + Seek> {
    cache: ReadCache<R>,
    remaining: Cell<u64>,
    is_exceeded: Cell<bool>,
}

impl<R: Read + Seek> LimitedFile<R> {
    /// Creates a reader of up to `limit` bytes of `file` in total.
    pub fn new(file: R, limit: u64) -> Self {
        Self {
            cache: ReadCache::new(file),
            remaining: Cell::new(limit),
            is_exceeded: Cell::new(false),
        }
    }

    /// Returns whether a read failed at the limit, or for lack of memory.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    /// Counts bytes that are to be read. Fails, and records that the limit is exceeded, if fewer bytes are left.
    fn charge(&self, size: u64) -> Result<(), ()> {
        let remaining = self.remaining.get().checked_sub(size);
        self.is_exceeded
            .set(self.is_exceeded.get() || remaining.is_none());
        self.remaining.set(remaining.ok_or(())?);
        Ok(())
    }
}

impl<'a, R: Read + Seek> ReadRef<'a> for &'a LimitedFile<R> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    /// Fails if fewer than `size` bytes are left of the limit. If a read within the file fails, records it as one that
    /// exceeded the limit, because there was no memory for it.
    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.charge(size)?;
        let read = self.cache.read_bytes_at(offset, size);
        // A range within the file that cannot be read found no memory, or is damaged on the disk.
        let end = offset.checked_add(size);
        if read.is_err()
            && end.is_some_and(|end| self.cache.len().is_ok_and(|length| end <= length))
        {
            self.is_exceeded.set(true);
        }
        read
    }

    /// Counts only the bytes of the result, because the cache reads at most a small part of a long range. Fails if
    /// fewer bytes are left of the limit.
    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let bytes = self.cache.read_bytes_at_until(range, delimiter)?;
        self.charge(bytes.len() as u64)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn read_beyond_limit_fails() {
        let check = |reads: &[u64], expected: &[bool]| {
            let file = LimitedFile::new(Cursor::new(vec![b'x'; 100]), 50);
            let found: Vec<bool> = reads
                .iter()
                .map(|size| (&file).read_bytes_at(0, *size).is_ok())
                .collect();
            assert_eq!(found, expected, "{reads:?}");
        };
        check(&[50, 1], &[true, false]);
        check(&[51, 50], &[false, true]);
        check(&[u64::MAX, 10], &[false, true]);
        check(&[20, 20, 20], &[true, true, false]);
    }

    #[test]
    fn repeated_reads_of_name_exceed_limit() {
        let file = LimitedFile::new(Cursor::new(b"name\0rest".to_vec()), 10);
        let read = || (&file).read_bytes_at_until(0..9, 0);
        assert_eq!(read(), Ok(b"name".as_slice()));
        assert!(read().is_ok());
        assert!(read().is_err());
    }

    /// A section in a hole, which like one in preallocated blocks is never read from the file.
    #[test]
    fn table_larger_than_limit_is_not_read() {
        let mut elf = std::fs::read("/proc/self/exe").unwrap();
        let word = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap()) as usize;
        let half = |at: usize| usize::from(u16::from_le_bytes([elf[at], elf[at + 1]]));
        // `e_shoff`, `e_shentsize`, `e_shnum`; `sh_type` of a symbol table.
        let (table, size, count) = (word(40), half(58), half(60));
        let mut headers = (0..count).map(|index| table + index * size);
        let symbols = headers.find(|at| elf[at + 4..at + 8] == 2_u32.to_le_bytes());
        let symbols = symbols.expect("this test has symbols");
        let end = elf.len() as u64 / 8 * 8 + 8;
        elf[symbols + 24..symbols + 32].copy_from_slice(&end.to_le_bytes());
        elf[symbols + 32..symbols + 40].copy_from_slice(&(24_u64 << 28).to_le_bytes());
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &elf).unwrap();
        file.set_len(end + (24 << 28)).unwrap();
        let limited = LimitedFile::new(&file, 64 << 20);
        assert!(object::File::parse(&limited).is_err());
        assert!(limited.is_exceeded());
    }
}
