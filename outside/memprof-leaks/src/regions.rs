//! Mappings of a process, and their resident pages.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use memprof_ptrace::mapped_file::{MountKey, Mounts};
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::address_ranges::{merge_ranges, push_difference};
use crate::error::Error;
use crate::resident_pages::{PAGE_SIZE, find_resident_or_swapped_pages};

/// A mapping, and its pages that may be read.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) range: Range<u64>,
    /// Path of the file as the kernel names it, or `[heap]` and the like; empty if it has no name.
    pub(crate) name: String,
    pub(crate) is_writable: bool,
    pub(crate) is_executable: bool,
    pub(crate) is_shared: bool,
    pub(crate) is_file: bool,
    /// Device of the file, as `major:minor` in hexadecimal digits.
    pub(crate) device: String,
    /// Inode of the file; 0 if it maps none.
    pub(crate) inode: u64,
    /// Offset of its start in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) has_no_access: bool,
    /// Whether the snapshot's copy does not have it, or has zeros there.
    pub(crate) is_uncopied: bool,
    /// Pages that may hold pointers: private ones that are not unchanged pages of a file, or all of shared memory.
    pub(crate) pages: Vec<Range<u64>>,
}

/// Memory of a process, or of a copy of one.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    pid: Pid,
    memory: Arc<Memory>,
}

impl Region {
    /// Whether `process_vm_readv(2)` may read this mapping: the process itself may read it, and it maps no file,
    /// because the file's system may never deliver a page.
    pub(crate) fn supports_direct_read(&self) -> bool {
        !self.has_no_access && !self.is_file
    }

    /// Whether this mapping is of a file on FUSE, as process `pid` sees the mounts. Each access to such a file may
    /// block forever.
    pub(crate) fn is_on_fuse(&self, pid: i32) -> bool {
        let mounts = Mounts::for_pid(pid.cast_unsigned());
        self.is_file && mounts.is_fuse(MountKey::Device(self.device.as_bytes()))
    }
}

#[cfg(test)]
impl Region {
    /// Private anonymous memory without resident pages, for tests.
    pub(crate) fn anonymous(range: Range<u64>) -> Self {
        Self {
            range,
            name: String::new(),
            is_writable: true,
            is_executable: false,
            is_shared: false,
            is_file: false,
            device: String::new(),
            inode: 0,
            offset: 0,
            has_no_access: false,
            is_uncopied: false,
            pages: Vec::new(),
        }
    }
}

impl ProcessMemory {
    /// Opens the memory of a running process. Fails with `Io` if this user may not read it.
    pub(crate) fn open(pid: u32) -> Result<Self, Error> {
        Self::open_copy(pid, pid)
    }

    /// Opens the memory of a copy of process `original`. Fails with `Io` if this user may not read it.
    pub(crate) fn open_copy(pid: u32, original: u32) -> Result<Self, Error> {
        let memory = Memory::open_copy_by_child(pid, original);
        let memory = memory.map_err(Error::with_action(format!("/proc/{pid}/mem")))?;
        Ok(Self {
            pid: Pid::from_raw(pid.cast_signed()),
            memory: Arc::new(memory),
        })
    }

    /// Pid of the process, or of the copy, whose memory is read.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Handle through which the reads are made. It records whether all of them were answered.
    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Reads as many bytes at an address as can be read, and returns their number. `is_direct`:
    /// `process_vm_readv(2)` may be tried first.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8], is_direct: bool) -> usize {
        if is_direct {
            let length = buffer.len();
            let base = address as usize;
            let local = &mut [IoSliceMut::new(buffer)];
            let remote = [RemoteIoVec { base, len: length }];
            if let Ok(read) = process_vm_readv(self.pid, local, &remote)
                && read == length
            {
                return length;
            }
        }
        // /proc/PID/mem is slower, but can also read what the process itself must not. After a failure,
        // reading goes on page by page up to the first unreadable page.
        if self.memory.read(address, buffer).is_ok() {
            return buffer.len();
        }
        let mut done = 0;
        while done < buffer.len() {
            let end = (PAGE_SIZE - (address + done as u64) % PAGE_SIZE) as usize;
            let end = buffer.len().min(done + end);
            if self
                .memory
                .read(address + done as u64, &mut buffer[done..end])
                .is_err()
            {
                break;
            }
            done = end;
        }
        done
    }
}

/// Parts of shared objects that some mapping shows: ranges of offsets, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct ViewedParts(HashMap<(String, u64), Vec<Range<u64>>>);

impl ViewedParts {
    /// Removes from the pages of shared memory those that an earlier mapping of the same object shows, too. Returns the
    /// parts of shared objects that the mappings show.
    pub(crate) fn drop_second_views(regions: &mut [Region]) -> Self {
        let mut viewed = Self::default();
        for region in regions.iter_mut().filter(|region| region.is_shared) {
            let (start, offset) = (region.range.start, region.offset);
            let pages = mem::take(&mut region.pages).into_iter();
            let in_object = |run: Range<u64>| run.start - start + offset..run.end - start + offset;
            region.pages = viewed.add_parts(region, pages.map(in_object));
        }
        viewed
    }

    /// Adds parts of a mapping's object, by offset. Returns the addresses of those that were not shown before.
    pub(crate) fn add_parts(
        &mut self,
        region: &Region,
        parts: impl Iterator<Item = Range<u64>>,
    ) -> Vec<Range<u64>> {
        let viewed = self
            .0
            .entry((region.device.clone(), region.inode))
            .or_default();
        let mut first = Vec::new();
        parts.for_each(|part| push_difference(part, viewed, &mut first));
        viewed.extend(first.iter().cloned());
        *viewed = merge_ranges(mem::take(viewed));
        let (start, offset) = (region.range.start, region.offset);
        let addresses = |run: Range<u64>| run.start - offset + start..run.end - offset + start;
        first.into_iter().map(addresses).collect()
    }
}

/// Reads the mappings of a process that `is_included` accepts, with their resident pages. Mappings of the kernel's own,
/// such as `[vdso]`, get no pages. Fails with `Io` if the process was killed, or its mappings cannot be read.
pub(crate) fn read_regions(
    pid: u32,
    is_included: impl Fn(&Mapping<'_>) -> bool,
) -> Result<Vec<Region>, Error> {
    let path = |name: &str| format!("/proc/{pid}/{name}");
    let maps = fs::read(path("maps")).map_err(Error::with_action(path("maps")))?;
    let pages = File::open(path("pagemap")).map_err(Error::with_action(path("pagemap")))?;
    let region = |mapping: Mapping<'_>| {
        let is_shared = mapping.access[3] == b's';
        let is_writable = mapping.access[1] == b'w';
        // The pages of these mappings are the kernel's and hold no pointers of the process.
        let kernel_mappings = [
            b"[vvar]".as_slice(),
            b"[vdso]",
            b"[vsyscall]",
            b"[vvar_vclock]",
        ];
        let found = match kernel_mappings.contains(&mapping.path) {
            true => Vec::new(),
            false => find_resident_or_swapped_pages(&pages, &mapping.range, is_shared),
        };
        Region {
            name: String::from_utf8_lossy(mapping.path).into_owned(),
            is_writable,
            is_executable: mapping.is_executable(),
            is_shared,
            is_file: mapping.inode != 0,
            device: String::from_utf8_lossy(mapping.device).into_owned(),
            inode: mapping.inode,
            offset: mapping.offset,
            has_no_access: mapping.access[0] != b'r',
            is_uncopied: false,
            pages: found,
            range: mapping.range,
        }
    };
    let included = mappings(&maps).filter(is_included);
    Ok(included.map(region).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_views_of_shared_pages_are_dropped() {
        let view = |start: u64, offset, inode, pages: &[(u64, u64)]| Region {
            is_shared: true,
            inode,
            offset,
            pages: pages.iter().map(|(start, end)| *start..*end).collect(),
            ..Region::anonymous(start..start + 0x1_0000)
        };
        let mut regions = [
            view(
                0x10_0000,
                0,
                7,
                &[(0x10_0000, 0x10_2000), (0x10_4000, 0x10_5000)],
            ),
            view(0x20_0000, 0x1000, 7, &[(0x20_0000, 0x20_4000)]),
            view(0x30_0000, 0, 8, &[(0x30_0000, 0x30_1000)]),
        ];
        ViewedParts::drop_second_views(&mut regions);
        assert_eq!(regions[0].pages.len(), 2);
        let run = &regions[1].pages[0];
        assert_eq!((run.start, run.end), (0x20_1000, 0x20_3000));
        assert_eq!(regions[2].pages.len(), 1);
    }
}
