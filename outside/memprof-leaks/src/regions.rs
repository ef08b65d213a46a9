//! The mappings of a process, and what they hold.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::error::Error;
use crate::resident_pages::{PAGE, resident};

/// A mapping, and what of it is to be read.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) range: Range<u64>,
    /// The file as the kernel names it, `[heap]` and the like, or nothing.
    pub(crate) name: String,
    pub(crate) is_writable: bool,
    pub(crate) is_executable: bool,
    pub(crate) is_shared: bool,
    pub(crate) is_file: bool,
    /// The file's, 0 for memory of no file.
    pub(crate) inode: u64,
    /// Where in the file it begins, in bytes.
    pub(crate) offset: u64,
    pub(crate) has_no_access: bool,
    /// The copy does not have it, or has zeros there.
    pub(crate) is_uncopied: bool,
    /// Pages that may hold pointers: private ones of no file, or shared ones that can be written.
    pub(crate) pages: Vec<Range<u64>>,
}

/// A process whose memory is read.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    pid: Pid,
    memory: Arc<Memory>,
}

impl Region {
    /// Whether none of its pages has to be waited for, and the process itself may read them: those of files may never
    /// come.
    pub(crate) fn is_direct(&self) -> bool {
        !self.has_no_access && !self.is_file
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
            is_executable: false,
            is_shared: false,
            is_file: false,
            inode: 0,
            offset: 0,
            has_no_access: false,
            is_uncopied: false,
            pages: Vec::new(),
        }
    }
}

impl ProcessMemory {
    pub(crate) fn open(pid: u32) -> Result<Self, Error> {
        Self::open_copy(pid, pid)
    }

    /// Opens a copy of process `of`.
    pub(crate) fn open_copy(pid: u32, of: u32) -> Result<Self, Error> {
        let memory = Memory::open_copy_by_child(pid, of);
        let memory = memory.map_err(Error::io(format!("/proc/{pid}/mem")))?;
        Ok(Self {
            pid: Pid::from_raw(pid.cast_signed()),
            memory: Arc::new(memory),
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Knows, also later, whether a page did not come: what was read besides is no answer then.
    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Reads what begins at an address, as much as can be read; the length in bytes. `is_direct`: none of its pages has to
    /// be waited for, and the process itself may read them.
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

/// The mappings of a process that are asked for, and which of their pages there are.
///
/// # Errors
/// It was killed.
pub(crate) fn read_regions(
    pid: u32,
    is_wanted: impl Fn(&Range<u64>) -> bool,
) -> Result<Vec<Region>, Error> {
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
            is_executable: mapping.is_executable(),
            is_shared,
            is_file: mapping.inode != 0,
            inode: mapping.inode,
            offset: mapping.offset,
            has_no_access: mapping.access[0] != b'r',
            is_uncopied: false,
            pages: found,
            range: mapping.range,
        }
    };
    let wanted = mappings(&maps).filter(|mapping| is_wanted(&mapping.range));
    Ok(wanted.map(region).collect())
}
