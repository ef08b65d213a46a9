//! Reads the samples of another process from outside, to find where its live blocks were allocated.

use core::ops::Range;

use crate::address_hash::AddressHash;
use crate::live_table::{BUCKETS_PER_TABLE, find_remote_record, table_ranges};
use crate::stack_table::{MAX_FRAMES, read_remote_frames};

/// Bytes in front of the tables, among the variables of a process. The last one is the version of the layout
/// that this module reads.
pub const MARK: [u8; 16] = *b"memprof samples\x05";

/// Addresses of the tables in another process, and the interval of their samples.
#[derive(Clone, Copy, Debug)]
pub struct RemoteTables {
    /// Addresses of the live tables; 0 means not mapped.
    tables: [u64; BUCKETS_PER_TABLE.len()],
    /// Address of the stack table's first word.
    words: u64,
    /// Least mean bytes between the samples.
    interval: u64,
}

impl RemoteTables {
    /// Reads the interval and the addresses that follow the [`MARK`] at the address `mark` of another process. `word`
    /// reads eight bytes of that process. `None` if sampling was never on in that process, or its memory is unreadable.
    pub fn read_after_mark(mark: u64, mut word: impl FnMut(u64) -> Option<u64>) -> Option<Self> {
        let mut next = mark.wrapping_add(MARK.len() as u64);
        let mut field = || {
            let field = word(next)?;
            next = next.wrapping_add(8);
            Some(field)
        };
        let interval = field()?;
        let mut tables = [0; BUCKETS_PER_TABLE.len()];
        for table in &mut tables {
            *table = field()?;
        }
        let words = field()?;
        (tables[0] != 0 && words != 0).then_some(Self {
            tables,
            words,
            interval,
        })
    }

    /// Returns the smallest sample interval, in mean bytes between samples, since the process last dropped its samples.
    /// No object was sampled with a higher probability than at this interval.
    pub fn interval(&self) -> u64 {
        self.interval
    }

    /// Returns the address ranges of the live tables. They contain addresses of sampled blocks, which a search for
    /// leaks must not take for references to the blocks.
    pub fn address_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        table_ranges(self.tables)
    }

    /// Returns the stack that allocated the live sample at `block`, leaf first: program counters, then pseudo frames.
    /// `word` reads eight bytes of the sampled process. `None` if there is no such sample, its record changed during
    /// the read, or memory is unreadable.
    pub fn read_stack<'r>(
        &self,
        block: u64,
        mut word: impl FnMut(u64) -> Option<u64>,
        buffer: &'r mut [u64; MAX_FRAMES],
    ) -> Option<&'r [u64]> {
        let record = find_remote_record(
            self.tables,
            AddressHash::new(block as usize),
            block,
            &mut word,
        )?;
        read_remote_frames(self.words, record, word, buffer)
    }
}
