//! Layout of the page that memprof and the new thread share in the target: numbers and texts at fixed offsets.

use memprof_ptrace::memory::Memory;
use memprof_ptrace::seccomp::SpareCalls;

/// Offsets of the addresses of functions: dlopen(3), dlsym(3), dlerror(3), munmap(2), `pthread_self(3)`,
/// `pthread_detach(3)`.
pub(crate) const DLOPEN: usize = 0;
pub(crate) const DLSYM: usize = 8;
pub(crate) const DLERROR: usize = 16;
pub(crate) const MUNMAP: usize = 24;
pub(crate) const SELF: usize = 32;
pub(crate) const DETACH: usize = 40;
/// Start of the region (code and data pages) that the thread unmaps before it exits; `LENGTH` is its size in bytes.
pub(crate) const BASE: usize = 48;
pub(crate) const LENGTH: usize = 56;
/// Signals that the new thread blocks: `sigset_t`, 64 bits.
pub(crate) const MASK: usize = 64;
/// Progress of the thread: [`LoaderStage`].
pub(crate) const STAGE: usize = 72;
/// memprof's reply: [`LoaderAck`].
pub(crate) const REPLY: usize = 80;
/// Pause between two checks of the reply: `struct timespec`.
pub(crate) const PAUSE: usize = 88;
/// Descriptor of the file in memory that the thread created, or a negative errno.
pub(crate) const MEMFD: usize = 104;
/// Not 0 if the thread must create a file in memory for the plugin.
pub(crate) const WANTS_MEMFD: usize = 112;
/// Address of `memprof_attached` if the plugin is loaded already, else 0.
pub(crate) const ENTRY: usize = 120;
/// Buffer for the `pthread_t` of `pthread_create(3)`.
pub(crate) const THREAD: usize = 128;
/// Address of `pthread_create(3)`.
pub(crate) const CREATE: usize = 136;
/// Address of a `syscall; ret` in libc.
pub(crate) const SYSTEM_CALL: usize = 144;
/// Result of `pthread_create(3)`: 0, or an errno.
pub(crate) const CREATE_RESULT: usize = 152;
/// Not 0 once the thread that called `pthread_create(3)` has left the code.
pub(crate) const CREATED: usize = 160;
/// Addresses of the program's `malloc` and `free`, as the loader finds them.
pub(crate) const MALLOC: usize = 168;
pub(crate) const FREE: usize = 176;
/// Not 0 if `malloc` returned memory that is not aligned to 16 bytes. Nothing was loaded then.
pub(crate) const IS_MISALIGNED: usize = 184;
/// Names of symbols and of the file in memory, with their final zeros.
pub(crate) const MALLOC_NAME: usize = 192;
pub(crate) const FREE_NAME: usize = 200;
/// [`OWN_TABLE`] if the thread gets a descriptor table of its own, else 0. The thread sets it to 0 if that failed.
pub(crate) const TABLE: usize = 208;
/// Not 0 if the thread allows itself RDTSC and CPUID, which the program may have forbidden the thread that created it.
pub(crate) const ENABLES_TIME_STAMPS: usize = 216;
pub(crate) const ENABLES_CPUID: usize = 224;
/// Not 0 if the processor has protection keys, to all of which the thread that creates the new one gives itself the
/// right.
pub(crate) const HAS_KEYS: usize = 232;
pub(crate) const ENTRY_NAME: usize = 256;
pub(crate) const MEMFD_NAME: usize = 320;
/// Addresses of libc's functions for thread attributes; `ATTRIBUTES` is the buffer: `pthread_attr_t` has 56 bytes.
pub(crate) const ATTRIBUTES_INIT: usize = 352;
pub(crate) const GET_STACK_SIZE: usize = 360;
pub(crate) const SET_STACK_SIZE: usize = 368;
/// Stack size of the program's threads by default, in bytes.
pub(crate) const STACK_SIZE: usize = 376;
pub(crate) const ATTRIBUTES: usize = 384;
/// Start and end of code in which a `malloc` uses no descriptor, up to a range that ends at 0.
pub(crate) const MALLOC_CODE: usize = 440;
pub(crate) const MAX_MALLOC_CODE: usize = 3;
/// Error text of the loader or the plugin, and its size in bytes.
pub(crate) const TEXT: usize = 512;
pub(crate) const TEXT_LENGTH: usize = 1024;
/// Path of the plugin, as the target opens it.
pub(crate) const PATH: usize = 1536;
/// Configuration of the plugin, up to the end of the page.
pub(crate) const TOML: usize = 1536 + 4096;

/// Second argument of `memprof_attached` on a thread that has a descriptor table without files.
pub(crate) const OWN_TABLE: u64 = 0x5461_626c;

/// Returns three words of the shared page, each after its offset in bytes. They say which of the optional system calls
/// in `calls` the new thread makes: for a descriptor table of its own, RDTSC and CPUID.
pub(crate) fn spare_call_words(calls: SpareCalls) -> [(u64, u64); 3] {
    let table = if calls.own_descriptors { OWN_TABLE } else { 0 };
    [
        (TABLE as u64, table),
        (
            ENABLES_TIME_STAMPS as u64,
            u64::from(calls.enable_time_stamps),
        ),
        (ENABLES_CPUID as u64, u64::from(calls.enable_cpuid)),
    ]
}

/// Progress of the new thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoaderStage {
    /// The new thread has not started.
    NotStarted = 0,
    /// The new thread runs.
    Started = 1,
    /// It created the file in memory and waits for its contents.
    AwaitsFile = 2,
    /// It loads the plugin, unless [`LoaderAck::Cancelled`] was stored before. From here on the plugin stays mapped.
    Loading = 3,
    /// It calls the plugin, unless [`LoaderAck::Cancelled`] was stored before.
    Calling = 4,
    /// The plugin's function has returned, or loading failed.
    Done = 5,
}

/// Reply of memprof to the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoaderAck {
    /// The file in memory is complete, and [`PATH`] names it.
    FileReady = 1,
    /// memprof has read the result: the thread may exit.
    ResultRead = 2,
    /// memprof no longer waits: the thread must exit without loading or calling the plugin.
    Cancelled = 3,
}

/// Contents of a shared page before it is written to the target.
#[derive(Debug)]
pub(crate) struct SharedPage(Vec<u8>);

impl SharedPage {
    /// Creates a page with the text of the plugin's configuration and its final zero; all other fields are 0.
    pub(crate) fn new(toml: &str) -> Self {
        let mut page = Self(vec![0; TOML + toml.len() + 1]);
        page.set_text(TOML, toml.as_bytes());
        page
    }

    /// Stores a number of 64 bits at an offset. Panics beyond the end of the page.
    pub(crate) fn set_word(&mut self, offset: usize, word: u64) {
        self.0[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Stores a text at an offset. The zeros behind it terminate it. Panics beyond the end of the page.
    pub(crate) fn set_text(&mut self, offset: usize, text: &[u8]) {
        self.0[offset..offset + text.len()].copy_from_slice(text);
    }

    /// Returns the bytes to write to the target.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A shared page in the target's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemotePage<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) address: u64,
}

impl RemotePage<'_> {
    /// Reads the number of 64 bits at an offset. Fails if the page is not mapped any more.
    pub(crate) fn read_word(self, offset: usize) -> std::io::Result<u64> {
        self.memory.read_u64(self.address + offset as u64)
    }

    /// Reads the progress of the new thread. An unknown number counts as `Done`. Fails if the page is not mapped any
    /// more.
    pub(crate) fn read_stage(self) -> std::io::Result<LoaderStage> {
        Ok(match self.read_word(STAGE)? {
            0 => LoaderStage::NotStarted,
            1 => LoaderStage::Started,
            2 => LoaderStage::AwaitsFile,
            3 => LoaderStage::Loading,
            4 => LoaderStage::Calling,
            _ => LoaderStage::Done,
        })
    }

    /// Writes a reply, for which the thread polls. Fails if the page is not mapped any more.
    pub(crate) fn send_reply(self, reply: LoaderAck) -> std::io::Result<()> {
        let reply = reply as u64;
        let address = self.address + REPLY as u64;
        self.memory.write(address, &reply.to_le_bytes())
    }

    /// Reads the error text of the plugin or the loader, at most [`TEXT_LENGTH`] bytes; empty on success. Fails if the
    /// page is not mapped any more.
    pub(crate) fn read_text(self) -> std::io::Result<String> {
        let text: [u8; TEXT_LENGTH] = self.memory.read_array(self.address + TEXT as u64)?;
        let end = text.iter().position(|byte| *byte == 0);
        let text = &text[..end.unwrap_or(TEXT_LENGTH)];
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}
