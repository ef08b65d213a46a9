//! The memory of a snapshot, read in blocks.

use std::sync::Arc;

use memprof_ptrace::memory::Memory;

use crate::error::Error;
use crate::regions::{ProcessMemory, Region, read_regions};
use crate::resident_pages::PAGE;
use crate::snapshot::{Snapshot, UncopiedMemory};

/// Bytes that are read at once.
pub(crate) const BLOCK: usize = 256 << 10;

/// The memory of a snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotMemory {
    /// By address.
    pub(crate) regions: Vec<Region>,
    copy: ProcessMemory,
    live: ProcessMemory,
    uncopied: Arc<UncopiedMemory>,
}

impl SnapshotMemory {
    /// Both memories that are read.
    pub(crate) fn memories(&self) -> [Arc<Memory>; 2] {
        [self.copy.memory(), self.live.memory()]
    }

    /// Reads the mappings of a snapshot, and which of their pages there are.
    ///
    /// # Errors
    /// The copy was killed.
    pub(crate) fn of(snapshot: &Snapshot) -> Result<Self, Error> {
        let copy = ProcessMemory::open_copy(snapshot.copy(), snapshot.pid)?;
        let live = ProcessMemory::open(snapshot.pid)?;
        let uncopied = Arc::clone(&snapshot.uncopied);
        let mut regions = read_regions(snapshot.copy(), |range| !uncopied.has(range))?;
        regions.extend(uncopied.regions.iter().cloned());
        regions.sort_by_key(|region| region.range.start);
        Ok(Self {
            regions,
            copy,
            live,
            uncopied,
        })
    }

    /// The pid of the process that was copied, whose files are open.
    pub(crate) fn live_pid(&self) -> i32 {
        self.live.pid()
    }

    /// The mapping in which an address lies.
    pub(crate) fn region(&self, address: u64) -> Option<&Region> {
        let at = self
            .regions
            .partition_point(|region| region.range.end <= address);
        self.regions
            .get(at)
            .filter(|region| region.range.contains(&address))
    }

    /// Reads what begins at an address, as much as can be read, across mappings; the length in bytes.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len()
            && let Some(at) = address.checked_add(done as u64)
            && let Some(region) = self.region(at)
        {
            let length = (buffer.len() - done).min((region.range.end - at) as usize);
            let read = self.read_region(region, at, &mut buffer[done..done + length]);
            done += read;
            if read < length {
                break;
            }
        }
        done
    }

    /// The same within a mapping.
    fn read_region(&self, region: &Region, address: u64, buffer: &mut [u8]) -> usize {
        if !region.is_uncopied {
            return self.copy.read(address, buffer, region.is_direct());
        }
        // Pages of a file that nobody wrote to are as they were.
        let mut read = 0;
        if region.is_file || !self.uncopied.is_saved() {
            read = self.live.read(address, buffer, region.is_direct());
        }
        if !self.uncopied.is_saved() {
            return read;
        }
        buffer[read..].fill(0);
        self.uncopied.read(address, buffer);
        buffer.len()
    }

    /// The mapping of a file that an address belongs to: variables without a value lie in memory of no file
    /// behind it.
    pub(crate) fn file_region(&self, address: u64) -> Option<&Region> {
        let region = self.region(address)?;
        if region.is_file || !region.name.is_empty() {
            return Some(region).filter(|region| region.is_file);
        }
        let before = self.region(region.range.start.checked_sub(1)?)?;
        (before.is_file && before.is_writable).then_some(before)
    }

    /// The text at an address that ends with a zero, of so many bytes at the most.
    pub(crate) fn text(&self, address: u64, limit: usize) -> Option<String> {
        let mut bytes = vec![0; limit];
        let read = self.read(address, &mut bytes);
        let end = bytes[..read].iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        String::from_utf8(bytes).ok()
    }

    /// One number; `None` where it is not mapped.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

/// Reads numbers that lie close to each other: a block is kept.
#[derive(Debug)]
pub(crate) struct CachedReader<'a> {
    view: &'a SnapshotMemory,
    start: u64,
    block: Vec<u8>,
    length: usize,
}

impl<'a> CachedReader<'a> {
    pub(crate) fn new(view: &'a SnapshotMemory) -> Self {
        Self {
            view,
            start: 0,
            block: vec![0; BLOCK],
            length: 0,
        }
    }

    /// The number at an address; what is not in the block is read alone.
    pub(crate) fn uncached_word(&self, address: u64) -> Option<u64> {
        let at = address.checked_sub(self.start).map(|at| at as usize);
        let kept = at.and_then(|at| self.kept(at));
        kept.or_else(|| self.view.word(address))
    }

    /// The number at an address; `None` where nothing is mapped.
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        let end = self.start + self.length as u64;
        if address < self.start || address.checked_add(8)? > end {
            self.start = address & !(PAGE - 1);
            self.length = self.view.read(self.start, &mut self.block);
        }
        self.kept((address - self.start) as usize)
    }

    fn kept(&self, at: usize) -> Option<u64> {
        let bytes = self.block[..self.length].get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }
}
