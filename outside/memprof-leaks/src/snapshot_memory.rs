//! Memory of a snapshot, read in blocks.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use memprof_ptrace::memory::Memory;

use crate::address_ranges::merge_ranges;
use crate::error::Error;
use crate::regions::{ProcessMemory, Region, ViewedParts, read_regions};
use crate::resident_pages::PAGE_SIZE;
use crate::shared_object::SharedObject;
use crate::snapshot::{Snapshot, UncopiedMemory};
use crate::unsearched::Unsearched;
use crate::words::{WORD, WORD_STEP};

/// Bytes that are read at a time.
pub(crate) const BLOCK_SIZE: usize = 256 << 10;
/// Least bytes of a block: two pages, because a word may reach into the second.
const MIN_BLOCK_SIZE: usize = 2 * PAGE_SIZE as usize;
/// Like [`WORD_STEP`], but in code: instructions, e.g. those of a JVM's compiler, contain pointers at any address.
const CODE_STEP: usize = 1;
/// Bytes by which a block overlaps the next one: the rest of a word that begins at the block's last byte.
const BLOCK_OVERLAP: usize = WORD - 1;
/// Most bytes of a block of [`split_into_blocks`].
pub(crate) const MAX_BLOCK_LEN: usize = BLOCK_SIZE + BLOCK_OVERLAP;
/// Most bytes of files on disks that are searched beyond the resident pages of their mappings.
const MAX_DISK_BYTES: u64 = 1 << 30;

/// Memory of a snapshot: of its copy, and of the process where the copy has none.
#[derive(Debug)]
pub(crate) struct SnapshotMemory {
    /// Mappings, by address.
    pub(crate) regions: Vec<Region>,
    copy: ProcessMemory,
    live: ProcessMemory,
    uncopied: Arc<UncopiedMemory>,
    shared: Arc<UncopiedMemory>,
    /// Objects of shared mappings, by the mapping's start.
    objects: BTreeMap<u64, SharedObject>,
    /// Parts of shared memory that cannot be read.
    pub(crate) unread_shared: Vec<Unsearched>,
}

impl SnapshotMemory {
    /// Returns the two memories from which the snapshot is read: that of the copy, and that of the running process.
    pub(crate) fn memories(&self) -> [Arc<Memory>; 2] {
        [self.copy.memory(), self.live.memory()]
    }

    /// Reads the mappings of a snapshot, and their resident pages. Fails if the copy was killed.
    pub(crate) fn open(snapshot: &Snapshot) -> Result<Self, Error> {
        let copy = ProcessMemory::open_copy(snapshot.copy_pid(), snapshot.pid)?;
        let live = ProcessMemory::open(snapshot.pid)?;
        let uncopied = Arc::clone(&snapshot.uncopied);
        let shared = Arc::clone(&snapshot.shared);
        let mut regions = read_regions(snapshot.copy_pid(), |mapping| {
            !uncopied.overlaps(&mapping.range) && !shared.overlaps(&mapping.range)
        })?;
        regions.extend(uncopied.regions.iter().chain(&shared.regions).cloned());
        regions.sort_by_key(|region| region.range.start);
        let mut memory = Self {
            regions,
            copy,
            live,
            uncopied,
            shared,
            objects: BTreeMap::new(),
            unread_shared: Vec::new(),
        };
        memory.add_shared_objects(snapshot);
        Ok(memory)
    }

    /// Opens the objects of shared memory, and adds the pages with data that the process itself has not touched, or
    /// whose page tables were dropped. Adds pages of files on disk up to [`MAX_DISK_BYTES`] in all, and none of a file
    /// that the process may only read. Records in `unread_shared` the memory that cannot be read. Skips devices.
    fn add_shared_objects(&mut self, snapshot: &Snapshot) {
        let (mut unopened, mut unread) = (0, 0);
        let mut on_disk = MAX_DISK_BYTES;
        let mut viewed = ViewedParts::drop_second_views(&mut self.regions);
        for region in self.regions.iter_mut().filter(|region| region.is_shared) {
            // A device cannot be read from outside the process.
            if snapshot.devices.contains(&region.range) {
                continue;
            }
            let resident: u64 = region
                .pages
                .iter()
                .map(|pages| pages.end - pages.start)
                .sum();
            let is_unwritable = snapshot.unwritable.contains(&region.range);
            let Some(object) = SharedObject::open_mapped_file(self.live.pid(), region) else {
                let size = region.range.end - region.range.start;
                // The resident pages of the mapping can be read in the running process.
                unopened += if is_unwritable { 0 } else { size - resident };
                continue;
            };
            // The process cannot have stored pointers in a file that it may only read.
            if is_unwritable && !object.is_memory {
                region.pages.clear();
                continue;
            }
            let (start, offset) = (region.range.start, region.offset);
            let end = object
                .size()
                .min(offset + (region.range.end - start))
                .max(offset);
            let data = object.data_ranges(offset..end);
            let bytes: u64 = data.iter().map(|run| run.end - run.start).sum();
            // Reading more of the disk would take too long.
            let is_read = object.is_memory || bytes <= on_disk;
            if is_read {
                let untouched = viewed.add_parts(region, data.into_iter());
                region.pages.extend(untouched);
                region.pages = merge_ranges(mem::take(&mut region.pages));
            } else {
                unread += bytes.saturating_sub(resident);
            }
            if !object.is_memory && is_read {
                on_disk -= bytes;
            }
            self.objects.insert(start, object);
        }
        for (bytes, what, why) in [
            (
                unopened,
                "shared memory that the process itself has not touched",
                "only a privileged user can read it, and nobody while a process has a lease on it (fcntl(2))",
            ),
            (unread, "files that are mapped shared", "they are too large"),
        ] {
            if bytes > 0 {
                self.unread_shared
                    .push(Unsearched::for_bytes(bytes, what, why));
            }
        }
    }

    /// Process id of the copy, or of the process itself if there is no copy.
    pub(crate) fn copy_pid(&self) -> i32 {
        self.copy.pid()
    }

    /// Memory of the copy; of the process itself if there is no copy.
    pub(crate) fn copy_memory(&self) -> Arc<Memory> {
        self.copy.memory()
    }

    /// Process id of the process that was copied, by which its files can be opened.
    pub(crate) fn live_pid(&self) -> i32 {
        self.live.pid()
    }

    /// Mapping that contains an address. `None` if there is none.
    pub(crate) fn region(&self, address: u64) -> Option<&Region> {
        let index = self
            .regions
            .partition_point(|region| region.range.end <= address);
        self.regions
            .get(index)
            .filter(|region| region.range.contains(&address))
    }

    /// Distance in bytes of the words that may be pointers in the mapping that contains an address: less in executable
    /// memory.
    pub(crate) fn word_step(&self, address: u64) -> usize {
        match self
            .region(address)
            .is_some_and(|region| region.is_executable)
        {
            true => CODE_STEP,
            false => WORD_STEP,
        }
    }

    /// Reads as many bytes at an address as can be read, across mappings, and returns their number.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len()
            && let Some(next) = address.checked_add(done as u64)
            && let Some(region) = self.region(next)
        {
            let length = (buffer.len() - done).min((region.range.end - next) as usize);
            let read = self.read_region(region, next, &mut buffer[done..done + length]);
            done += read;
            if read < length {
                break;
            }
        }
        done
    }

    /// Reads as many bytes at an address as can be read within one mapping, and returns their number. Reads a mapping
    /// that the copy has in the copy. Reads a mapping that it lacks in the running process, if it maps a file, or if
    /// nothing was saved; saved content then replaces what was read, and the rest is zeros.
    fn read_region(&self, region: &Region, address: u64, buffer: &mut [u8]) -> usize {
        if region.is_shared {
            return self.read_shared(region, address, buffer);
        }
        if !region.is_uncopied {
            return self
                .copy
                .read(address, buffer, region.supports_direct_read());
        }
        // The running process still has the file's unchanged pages; the changed ones were saved.
        let mut read = 0;
        if region.is_file || !self.uncopied.is_saved() {
            read = self
                .live
                .read(address, buffer, region.supports_direct_read());
        }
        if !self.uncopied.is_saved() {
            return read;
        }
        buffer[read..].fill(0);
        self.uncopied.copy_saved_bytes_into(address, buffer);
        buffer.len()
    }

    /// Reads as many bytes at an address as can be read within one shared mapping, and returns their number. Reads the
    /// mapping's object if it is open. Else, if nothing was saved, reads the resident pages in the running process,
    /// because reading others would allocate them. Saved content replaces what is read; the rest is zeros.
    fn read_shared(&self, region: &Region, address: u64, buffer: &mut [u8]) -> usize {
        buffer.fill(0);
        if let Some(object) = self.objects.get(&region.range.start) {
            object.read(address - region.range.start + region.offset, buffer);
        } else if !self.shared.is_saved() {
            let end = address + buffer.len() as u64;
            let first = region.pages.partition_point(|pages| pages.end <= address);
            for pages in region.pages[first..]
                .iter()
                .take_while(|pages| pages.start < end)
            {
                let (start, stop) = (pages.start.max(address), pages.end.min(end));
                let (from, to) = ((start - address) as usize, (stop - address) as usize);
                let read =
                    self.live
                        .read(start, &mut buffer[from..to], region.supports_direct_read());
                if read < to - from {
                    return from + read;
                }
            }
        }
        self.shared.copy_saved_bytes_into(address, buffer);
        buffer.len()
    }

    /// Returns the file mapping to which an address belongs. `None` if it belongs to no file. An address in an unnamed
    /// mapping right behind a writable file mapping belongs to the latter: a file's variables without an initial value
    /// are there.
    pub(crate) fn owning_file_region(&self, address: u64) -> Option<&Region> {
        let region = self.region(address)?;
        if region.is_file || !region.name.is_empty() {
            return Some(region).filter(|region| region.is_file);
        }
        let before = self.region(region.range.start.checked_sub(1)?)?;
        (before.is_file && before.is_writable).then_some(before)
    }

    /// Text at an address up to its zero byte. `None` if there is none in `limit` bytes, or the text is not UTF-8
    /// or cannot be read.
    pub(crate) fn read_text(&self, address: u64, limit: usize) -> Option<String> {
        let mut bytes = vec![0; limit];
        let read = self.read(address, &mut bytes);
        let end = bytes[..read].iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        String::from_utf8(bytes).ok()
    }

    /// Word at `offset` bytes from the start of a structure. `None` if it cannot be read.
    pub(crate) fn read_field(&self, structure: u64, offset: u64) -> Option<u64> {
        self.read_word(structure.checked_add(offset)?)
    }

    /// Word at an address. `None` if it cannot be read.
    pub(crate) fn read_word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

/// Splits a range into blocks of [`BLOCK_SIZE`] bytes. Each also has the rest of a word that begins before its end.
pub(crate) fn split_into_blocks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range
        .step_by(BLOCK_SIZE)
        .map(move |start| start..end.min(start + MAX_BLOCK_LEN as u64))
}

/// Reader of words that are near each other: keeps the last block. The size of blocks doubles, up to [`BLOCK_SIZE`],
/// while each begins shortly behind the one before.
#[derive(Debug)]
pub(crate) struct CachedReader<'a> {
    view: &'a SnapshotMemory,
    start: u64,
    block: Vec<u8>,
    length: usize,
    /// Size of the last block that was requested, in bytes.
    requested: usize,
}

impl<'a> CachedReader<'a> {
    /// Creates a reader of a snapshot, without a block yet.
    pub(crate) fn new(view: &'a SnapshotMemory) -> Self {
        Self {
            view,
            start: 0,
            block: vec![0; BLOCK_SIZE],
            length: 0,
            requested: 0,
        }
    }

    /// Word at an address, from the block if it is there, but never replaces the block. `None` if it cannot be read.
    pub(crate) fn word_without_caching(&self, address: u64) -> Option<u64> {
        let offset = address
            .checked_sub(self.start)
            .map(|offset| offset as usize);
        let cached = offset.and_then(|offset| self.cached_word(offset));
        cached.or_else(|| self.view.read_word(address))
    }

    /// Word at an address. If the block lacks it, reads a new block from its page on, which is larger if the address
    /// follows the last block. `None` if it cannot be read.
    pub(crate) fn read_word(&mut self, address: u64) -> Option<u64> {
        let end = self.start + self.length as u64;
        if address < self.start || address.checked_add(8)? > end {
            let start = address & !(PAGE_SIZE - 1);
            // A start in front of the last block wraps around to a long distance.
            let is_behind = start.wrapping_sub(self.start) <= 2 * BLOCK_SIZE as u64;
            self.requested = match is_behind {
                true => (self.requested * 2).clamp(MIN_BLOCK_SIZE, BLOCK_SIZE),
                false => MIN_BLOCK_SIZE,
            };
            self.start = start;
            self.length = self.view.read(start, &mut self.block[..self.requested]);
        }
        self.cached_word((address - self.start) as usize)
    }

    /// Word at an offset in the block. `None` if the block does not contain it.
    fn cached_word(&self, offset: usize) -> Option<u64> {
        let bytes = self.block[..self.length].get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }
}
