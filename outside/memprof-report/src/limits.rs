//! How much of a hostile input is read before it is refused.

use crate::error::{Error, Result};

/// The most that is accepted. Every pass over the input is linear in these, so they bound the time too.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text or protobuf, after decompression.
    pub bytes: u64,
    /// Decompressed bytes per compressed byte, looked at beyond 8 MiB of them. Dumps have about 20.
    pub ratio: u64,
    /// Bytes of memory per byte of text or protobuf, looked at beyond 48 MiB in all: what each part
    /// of a profile takes is counted as it is read.
    pub memory: u64,
    /// Bytes of one line.
    pub line: usize,
    /// Frames of one stack. jemalloc keeps 128 unless `prof_bt_max` says more.
    pub frames: usize,
    /// Samples of one profile.
    pub samples: usize,
    /// Mappings of one profile; Linux gives a process 65,530 unless told otherwise.
    pub mappings: usize,
}

impl Limits {
    /// Small inputs may have any ratio: they cannot hurt.
    pub(crate) const RATIO_FLOOR: u64 = 8 << 20;

    /// What any input may take in memory.
    pub(crate) const MEMORY_FLOOR: u64 = 48 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 4 << 30,
            ratio: 200,
            memory: 8,
            line: 128 << 10,
            frames: 4096,
            samples: 50_000_000,
            mappings: 1 << 18,
        }
    }
}

/// What a part of a profile takes in memory until the report is written, at the most: its own bytes, those of
/// the tables that it is found by, and of its row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProfileItem {
    /// A distinct address with its name and its function.
    Address,
    /// The values at one stack.
    Sample,
    /// A distinct stack of so many frames.
    Stack(usize),
    /// A function, or a place, of a table that is read in full.
    Entry,
    /// An inlined function at an address.
    Inlined,
    /// A mapping, a symbol, a build id: text of so many bytes that is kept.
    Text(usize),
}

impl ProfileItem {
    fn cost(self) -> u64 {
        match self {
            Self::Address => 700,
            Self::Sample => 56,
            Self::Stack(frames) => 176 + 6 * frames as u64,
            Self::Entry => 80,
            Self::Inlined => 40,
            Self::Text(bytes) => 256 + 4 * bytes as u64,
        }
    }
}

/// What a profile takes in memory, counted while it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParseBudget {
    ratio: u64,
    spent: u64,
}

impl ParseBudget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            ratio: limits.memory,
            spent: 0,
        }
    }

    /// Counts a part of an input of which so many bytes are read.
    pub(crate) fn spend(&mut self, part: ProfileItem, read: u64) -> Result<()> {
        self.spent += part.cost();
        self.room(read).charge(0)
    }

    /// What is left when so many bytes are read.
    pub(crate) fn room(self, read: u64) -> MemoryLeft {
        let limit = read
            .saturating_mul(self.ratio)
            .saturating_add(Limits::MEMORY_FLOOR);
        MemoryLeft {
            spent: self.spent,
            limit,
        }
    }
}

/// What is left to a report in memory, once its profile is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryLeft {
    spent: u64,
    limit: u64,
}

impl Default for MemoryLeft {
    fn default() -> Self {
        Self {
            spent: 0,
            limit: u64::MAX,
        }
    }
}

impl MemoryLeft {
    /// Fails where there is no room for so many bytes.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<()> {
        self.spent = self.spent.saturating_add(bytes);
        match self.spent > self.limit {
            false => Ok(()),
            true => Err(Error::Limit {
                what: "bytes of memory that an input of its size may take",
                limit: self.limit,
            }),
        }
    }
}
