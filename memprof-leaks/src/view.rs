//! The memory of a snapshot, read in blocks.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::ops::Range;

use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::error::Error;
use crate::pages::{PAGE, resident};
use crate::snapshot::{Figures, Snapshot};

/// Bytes that are read at once.
pub(crate) const BLOCK: usize = 256 << 10;

/// The memory of a snapshot.
#[derive(Debug)]
pub(crate) struct View {
    /// By address.
    pub(crate) regions: Vec<Region>,
    copy: Process,
    live: Process,
}

#[derive(Debug)]
struct Process {
    pid: Pid,
    memory: Memory,
}

/// A mapping, and what of it is to be read.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) range: Range<u64>,
    /// The file as the kernel names it, `[heap]` and the like, or nothing.
    pub(crate) name: String,
    pub(crate) is_writable: bool,
    pub(crate) is_shared: bool,
    pub(crate) is_file: bool,
    pub(crate) has_no_access: bool,
    /// The copy does not have it, or has zeros there.
    pub(crate) is_live: bool,
    /// Pages that may hold pointers: private ones of no file, or shared ones that can be written.
    pub(crate) pages: Vec<Range<u64>>,
}

impl View {
    /// Reads the mappings of a snapshot, and which of their pages there are.
    ///
    /// # Errors
    /// The copy was killed.
    pub(crate) fn of(snapshot: &Snapshot) -> Result<Self, Error> {
        let copy = Process::open(snapshot.copy())?;
        let live = Process::open(snapshot.pid)?;
        let mut regions = regions(snapshot.copy(), |range| {
            is_within(range, &snapshot.not_copied)
        })?;
        let of_live = |range: &Range<u64>| is_within(range, &snapshot.not_copied);
        let not_copied = self::regions(snapshot.pid, of_live)?;
        regions.retain(|region| !region.is_live);
        regions.extend(not_copied.into_iter().filter(|region| region.is_live));
        regions.sort_by_key(|region| region.range.start);
        Ok(Self {
            regions,
            copy,
            live,
        })
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

    /// Reads what begins at an address, as much as can be read; the length in bytes.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(region) = self.region(address) else {
            return 0;
        };
        let length = buffer.len().min((region.range.end - address) as usize);
        let process = if region.is_live {
            &self.live
        } else {
            &self.copy
        };
        process.read(address, &mut buffer[..length], region.has_no_access)
    }

    /// One number; `None` where it is not mapped.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
impl Region {
    /// Private memory of no file, without any page.
    pub(crate) fn of(range: Range<u64>) -> Self {
        Self {
            range,
            name: String::new(),
            is_writable: true,
            is_shared: false,
            is_file: false,
            has_no_access: false,
            is_live: false,
            pages: Vec::new(),
        }
    }
}

impl Process {
    fn open(pid: u32) -> Result<Self, Error> {
        let memory = Memory::open(pid).map_err(Error::io(format!("/proc/{pid}/mem")))?;
        let pid = Pid::from_raw(pid.cast_signed());
        Ok(Self { pid, memory })
    }

    fn read(&self, address: u64, buffer: &mut [u8], has_no_access: bool) -> usize {
        if !has_no_access {
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
        // Slower, but also where the process itself may not read; and page by page across holes.
        if self.memory.read(address, buffer).is_ok() {
            return buffer.len();
        }
        let mut done = 0;
        while done < buffer.len() {
            let end = (PAGE - (address + done as u64) % PAGE) as usize;
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

fn is_within(range: &Range<u64>, figures: &[Figures]) -> bool {
    figures
        .iter()
        .any(|each| each.range.start < range.end && range.start < each.range.end)
}

fn regions(pid: u32, is_live: impl Fn(&Range<u64>) -> bool) -> Result<Vec<Region>, Error> {
    let path = |name: &str| format!("/proc/{pid}/{name}");
    let maps = fs::read(path("maps")).map_err(Error::io(path("maps")))?;
    let pages = File::open(path("pagemap")).map_err(Error::io(path("pagemap")))?;
    let region = |mapping: Mapping<'_>| {
        let is_shared = mapping.access[3] == b's';
        let is_writable = mapping.access[1] == b'w';
        let kernel_s = [
            b"[vvar]".as_slice(),
            b"[vdso]",
            b"[vsyscall]",
            b"[vvar_vclock]",
        ];
        let found = match kernel_s.contains(&mapping.path) || (is_shared && !is_writable) {
            true => Vec::new(),
            false => resident(&pages, &mapping.range, is_shared),
        };
        Region {
            name: String::from_utf8_lossy(mapping.path).into_owned(),
            is_writable,
            is_shared,
            is_file: mapping.inode != 0,
            has_no_access: mapping.access[0] != b'r',
            is_live: is_live(&mapping.range),
            pages: found,
            range: mapping.range,
        }
    };
    Ok(mappings(&maps).map(region).collect())
}

/// Reads numbers that lie close to each other: a block is kept.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    view: &'a View,
    start: u64,
    block: Vec<u8>,
    length: usize,
}

impl<'a> Window<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        Self {
            view,
            start: 0,
            block: vec![0; BLOCK],
            length: 0,
        }
    }

    /// The number at an address; `None` where nothing is mapped.
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        let end = self.start + self.length as u64;
        if address < self.start || address.checked_add(8)? > end {
            self.start = address & !(PAGE - 1);
            self.length = self.view.read(self.start, &mut self.block);
        }
        let at = (address - self.start) as usize;
        let bytes = self.block[..self.length].get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }
}
