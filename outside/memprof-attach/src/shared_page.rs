//! The page that is shared with the thread that loads the plugin: code, then these words and texts.

use memprof_ptrace::memory::Memory;

pub(crate) const DLOPEN: usize = 0;
pub(crate) const DLSYM: usize = 8;
pub(crate) const DLERROR: usize = 16;
pub(crate) const MUNMAP: usize = 24;
pub(crate) const SELF: usize = 32;
pub(crate) const DETACH: usize = 40;
/// Start of the region (code and data pages) that the thread unmaps before it exits; LENGTH is its size in bytes.
pub(crate) const BASE: usize = 48;
pub(crate) const LENGTH: usize = 56;
/// The signals that the new thread blocks: `sigset_t`, 64 bits.
pub(crate) const MASK: usize = 64;
/// Progress of the thread: [`LoaderStage`].
pub(crate) const STAGE: usize = 72;
/// memprof's answer: [`LoaderAck`].
pub(crate) const ANSWER: usize = 80;
/// `struct timespec`.
pub(crate) const PAUSE: usize = 88;
/// The file in memory that the thread made, or an errno.
pub(crate) const MEMFD: usize = 104;
pub(crate) const WANTS_MEMFD: usize = 112;
/// `memprof_attached`, where the plugin lies in the process already.
pub(crate) const ENTRY: usize = 120;
/// Where `pthread_create(3)` puts its answer.
pub(crate) const THREAD: usize = 128;
/// libc's `pthread_create`.
pub(crate) const CREATE: usize = 136;
/// `syscall; ret` of libc's.
pub(crate) const SYSTEM_CALL: usize = 144;
/// Result of `pthread_create(3)`: 0, or an errno.
pub(crate) const CREATE_RESULT: usize = 152;
/// Not 0 once the thread that made the new one is out of the code.
pub(crate) const CREATED: usize = 160;
/// The program's `malloc` and `free`, as the loader finds them.
pub(crate) const MALLOC: usize = 168;
pub(crate) const FREE: usize = 176;
/// Not 0 where `malloc` gave memory that is not aligned to 16 bytes. Nothing was loaded then.
pub(crate) const IS_MISALIGNED: usize = 184;
pub(crate) const MALLOC_NAME: usize = 192;
pub(crate) const FREE_NAME: usize = 200;
pub(crate) const ENTRY_NAME: usize = 256;
pub(crate) const MEMFD_NAME: usize = 320;
/// libc's functions of the new thread's attributes, and where those are: `pthread_attr_t` has 56 bytes.
pub(crate) const ATTRIBUTES_INIT: usize = 352;
pub(crate) const GET_STACK_SIZE: usize = 360;
pub(crate) const SET_STACK_SIZE: usize = 368;
/// The stack's size, as the program's threads have it.
pub(crate) const STACK_SIZE: usize = 376;
pub(crate) const ATTRIBUTES: usize = 384;
pub(crate) const TEXT: usize = 512;
pub(crate) const TEXT_LENGTH: usize = 1024;
pub(crate) const PATH: usize = 1536;
/// To the end.
pub(crate) const TOML: usize = 1536 + 4096;

/// How far the new thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoaderStage {
    /// The new thread has not begun.
    NotStarted = 0,
    /// The new thread runs.
    Started = 1,
    /// It made the file in memory and waits for what is in it.
    AwaitsFile = 2,
    /// The plugin is called, unless [`LoaderAck::Cancelled`] was there before.
    Calling = 3,
    /// The plugin was called, or could not be loaded.
    Done = 4,
}

/// What the thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoaderAck {
    /// The file in memory is whole, and [`PATH`] leads to it.
    FileReady = 1,
    /// All was read: it may end.
    ResultRead = 2,
    /// Nobody waits any more: it may end without calling the plugin.
    Cancelled = 3,
}

/// Numbers and texts at their places.
#[derive(Debug)]
pub(crate) struct SharedPage(Vec<u8>);

impl SharedPage {
    pub(crate) fn new(toml: &str) -> Self {
        let mut page = Self(vec![0; TOML + toml.len() + 1]);
        page.set_text(TOML, toml.as_bytes());
        page
    }

    pub(crate) fn set(&mut self, at: usize, word: u64) {
        self.0[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn set_text(&mut self, at: usize, text: &[u8]) {
        self.0[at..at + text.len()].copy_from_slice(text);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The page as it lies in the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemotePage<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) address: u64,
}

impl RemotePage<'_> {
    pub(crate) fn word(self, at: usize) -> std::io::Result<u64> {
        self.memory.word(self.address + at as u64)
    }

    pub(crate) fn stage(self) -> std::io::Result<LoaderStage> {
        Ok(match self.word(STAGE)? {
            0 => LoaderStage::NotStarted,
            1 => LoaderStage::Started,
            2 => LoaderStage::AwaitsFile,
            3 => LoaderStage::Calling,
            _ => LoaderStage::Done,
        })
    }

    pub(crate) fn answer(self, answer: LoaderAck) -> std::io::Result<()> {
        let answer = answer as u64;
        let at = self.address + ANSWER as u64;
        self.memory.write(at, &answer.to_le_bytes())
    }

    /// What the plugin or the loader said; empty where all is well.
    pub(crate) fn text(self) -> std::io::Result<String> {
        let text: [u8; TEXT_LENGTH] = self.memory.bytes(self.address + TEXT as u64)?;
        let end = text.iter().position(|byte| *byte == 0);
        let text = &text[..end.unwrap_or(TEXT_LENGTH)];
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}
