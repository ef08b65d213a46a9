//! The samples of another process, whose memory is read from outside: to tell where what lives there was allocated.

use core::ops::Range;

use crate::address_hash::AddressHash;
use crate::live_table::{BUCKETS, find_remote, ranges};
use crate::stack_table::{MOST_FRAMES, frames_of};

/// What stands before the tables in the variables of a process. The last byte tells the tables' form: it
/// changes with what this module reads of them.
pub const MARK: [u8; 16] = *b"memprof samples\x04";

/// Where the tables of another process lie.
#[derive(Clone, Copy, Debug)]
pub struct RemoteTables {
    /// Of live samples.
    tables: [u64; BUCKETS.len()],
    /// Of their records.
    words: u64,
}

impl RemoteTables {
    /// What lies behind a mark. `word` reads eight bytes of the process. `None` where nothing was sampled yet.
    pub fn read_after(mark: u64, mut word: impl FnMut(u64) -> Option<u64>) -> Option<Self> {
        let mut next = mark.wrapping_add(MARK.len() as u64);
        let mut pointer = || {
            let pointer = word(next)?;
            next = next.wrapping_add(8);
            Some(pointer)
        };
        let mut tables = [0; BUCKETS.len()];
        for table in &mut tables {
            *table = pointer()?;
        }
        let words = pointer()?;
        (tables[0] != 0 && words != 0).then_some(Self { tables, words })
    }

    /// The memory in which the addresses of samples stand, which hold none of them.
    pub fn address_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        ranges(self.tables)
    }

    /// The stack by which the live sample at an address was allocated, leaf first: program counters, and frames
    /// that are no code. `None` where there is no such sample.
    pub fn stack<'r>(
        &self,
        block: u64,
        mut word: impl FnMut(u64) -> Option<u64>,
        room: &'r mut [u64; MOST_FRAMES],
    ) -> Option<&'r [u64]> {
        let record = find_remote(
            self.tables,
            AddressHash::of(block as usize),
            block,
            &mut word,
        )?;
        frames_of(self.words, record, word, room)
    }
}
