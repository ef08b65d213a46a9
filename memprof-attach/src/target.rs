//! What is looked up in a process before any of its threads is stopped.

use std::fs::File;
use std::ops::Range;

use memchr::memmem;
use memprof_ptrace::errand::{Gadgets, RESTORER, SYSTEM_CALL};
use memprof_ptrace::image::Image;
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_ptrace::{Refusal, examine};

use crate::error::{ENDED, Error};

/// A process that can load a library.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    pub(crate) memory: Memory,
    /// /proc/PID/maps of this moment.
    pub(crate) maps: Vec<u8>,
    pub(crate) functions: Functions,
    pub(crate) gadgets: Gadgets,
    /// The code of allocators that are libraries: a thread that waits in it may be in the midst of a change
    /// to memory of the allocator's.
    pub(crate) allocators: Vec<Range<u64>>,
    /// Held while we are at it.
    _lock: File,
}

/// The addresses of libc's functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) pthread_create: u64,
    pub(crate) pthread_self: u64,
    pub(crate) pthread_detach: u64,
    pub(crate) dlopen: u64,
    pub(crate) dlsym: u64,
    pub(crate) dlerror: u64,
    pub(crate) munmap: u64,
}

/// Not the loader: a thread that it calls has locks that are the thread's own, and a new one waits.
const ALLOCATORS: [&[u8]; 4] = [
    b"libjemalloc",
    b"libtcmalloc",
    b"libmimalloc",
    b"libsnmalloc",
];

impl Target {
    /// Looks everything up.
    pub(crate) fn look_up(pid: u32) -> Result<Self, Error> {
        let lock = lock(pid)?;
        examine(pid)?;
        let path = format!("/proc/{pid}/mem");
        let memory = Memory::open(pid).map_err(Error::io(path))?;
        let maps = read_maps(pid)?;
        let libc = mappings(&maps)
            .find(|mapping| mapping.offset == 0 && mapping.file_name() == b"libc.so.6");
        let libc = libc.ok_or(Refusal::NoGlibc)?;
        let image = Image::read(&memory, libc.range.start);
        let image = image.map_err(Error::io("libc's symbols"))?;
        let functions = Functions::find(&image).ok_or(Refusal::OldGlibc)?;
        let is_code =
            |mapping: &Mapping<'_>| mapping.is_executable() && mapping.file_name() == b"libc.so.6";
        let gadgets = mappings(&maps)
            .filter(is_code)
            .find_map(|mapping| gadgets(&memory, &mapping.range));
        let gadgets = gadgets.ok_or_else(|| {
            let message = "its libc's return from signal handlers is of no form that is known here";
            Error::Failed(message.to_owned())
        })?;
        let allocators = mappings(&maps).filter(|mapping| {
            let name = mapping.file_name();
            mapping.is_executable() && ALLOCATORS.iter().any(|prefix| name.starts_with(prefix))
        });
        Ok(Self {
            pid,
            allocators: allocators.map(|mapping| mapping.range).collect(),
            memory,
            functions,
            gadgets,
            _lock: lock,
            maps,
        })
    }

    /// Reads the mappings anew.
    pub(crate) fn look_again(&mut self) -> Result<(), Error> {
        self.maps = read_maps(self.pid)?;
        Ok(())
    }

    /// The mapping in which an address lies.
    pub(crate) fn mapping(&self, address: u64) -> Option<Mapping<'_>> {
        mappings(&self.maps).find(|mapping| mapping.range.contains(&address))
    }
}

impl Functions {
    fn find(libc: &Image) -> Option<Self> {
        Some(Self {
            pthread_create: libc.symbol("pthread_create")?,
            pthread_self: libc.symbol("pthread_self")?,
            pthread_detach: libc.symbol("pthread_detach")?,
            dlopen: libc.symbol("dlopen")?,
            dlsym: libc.symbol("dlsym")?,
            dlerror: libc.symbol("dlerror")?,
            munmap: libc.symbol("munmap")?,
        })
    }
}

fn gadgets(memory: &Memory, code: &Range<u64>) -> Option<Gadgets> {
    let mut bytes = vec![0; (code.end - code.start) as usize];
    memory.read(code.start, &mut bytes).ok()?;
    let find = |what: &[u8]| Some(code.start + memmem::find(&bytes, what)? as u64);
    Some(Gadgets {
        restorer: find(&RESTORER)?,
        system_call: find(&SYSTEM_CALL)?,
    })
}

fn read_maps(pid: u32) -> Result<Vec<u8>, Error> {
    match std::fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) if !maps.is_empty() => Ok(maps),
        _ => Err(ENDED),
    }
}

/// One memprof at a time: two would write their frames to the same place. Given back by the kernel, also
/// should we be killed.
fn lock(pid: u32) -> Result<File, Error> {
    let directory = File::open(format!("/proc/{pid}")).map_err(|_| ENDED)?;
    match directory.try_lock() {
        Ok(()) => Ok(directory),
        Err(_) => Err(Error::Busy),
    }
}
