//! Limits on hostile input.

use crate::error::{Error, Result};

/// Largest accepted input. Every pass over the input is linear in these limits, so they bound the time too.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text or protobuf, after decompression.
    pub bytes: u64,
    /// Decompressed bytes per compressed byte, checked beyond 8 MiB. Dumps have about 20.
    pub ratio: u64,
    /// Bytes of memory per byte of text or protobuf, checked beyond 48 MiB. Each part of a profile is counted as it
    /// is read.
    pub memory: u64,
    /// Bytes of one line.
    pub line: usize,
    /// Frames of one stack. jemalloc keeps 128 unless `prof_bt_max` is set.
    pub frames: usize,
    /// Samples of one profile.
    pub samples: usize,
    /// Mappings of one profile; Linux allows a process 65,530 by default.
    pub mappings: usize,
    /// Dumps in one file: those of as many processes.
    pub dumps: usize,
}

impl Limits {
    /// Decompressed bytes below which the ratio is not checked: small inputs are harmless.
    pub(crate) const RATIO_FLOOR: u64 = 8 << 20;

    /// Bytes of memory that every input may use.
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
            dumps: 1 << 7,
        }
    }
}

/// Part of a profile, with an upper bound of its memory until the report is written: itself, its index entries, and
/// its row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProfileItem {
    /// Input of this many bytes that stays in memory while it is read.
    Input(usize),
    /// A distinct address with its name and its function.
    Address,
    /// The values of one stack.
    Sample,
    /// A value of a sample type that is none of the four.
    Value,
    /// A label of a distinct set, with this many bytes of text.
    Label(usize),
    /// A distinct stack with this many frames.
    Stack(usize),
    /// An entry of a table that is read in full, such as a function.
    Entry,
    /// An inlined function at an address.
    Inlined,
    /// Stored text of this many bytes: a mapping, a symbol or a build id.
    Text(usize),
}

impl ProfileItem {
    /// Upper bound of the memory that the item takes, in bytes. The numbers are estimates; the tests of `bombs.rs`
    /// measure that they suffice.
    fn memory_upper_bound(self) -> u64 {
        match self {
            Self::Input(bytes) => bytes as u64,
            Self::Address => 700,
            Self::Sample => 56,
            Self::Value => 8,
            Self::Label(bytes) => 160 + bytes as u64,
            Self::Stack(frames) => 176 + 6 * frames as u64,
            Self::Entry => 80,
            Self::Inlined => 40,
            Self::Text(bytes) => 256 + 4 * bytes as u64,
        }
    }
}

/// Memory of a profile, counted while it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParseBudget {
    ratio: u64,
    spent: u64,
}

impl ParseBudget {
    /// Creates the budget of a profile of which nothing was read.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            ratio: limits.memory,
            spent: 0,
        }
    }

    /// Counts the memory of an item. Fails if the limit is exceeded, which is in proportion to the `bytes_read` of the
    /// input so far.
    pub(crate) fn charge(&mut self, item: ProfileItem, bytes_read: u64) -> Result<()> {
        self.charge_all(item, 1, bytes_read)
    }

    /// Counts the memory of `count` items. Fails if the limit is exceeded, which is in proportion to the `bytes_read`
    /// of the input so far.
    pub(crate) fn charge_all(
        &mut self,
        item: ProfileItem,
        count: usize,
        bytes_read: u64,
    ) -> Result<()> {
        let cost = item.memory_upper_bound().saturating_mul(count as u64);
        self.spent = self.spent.saturating_add(cost);
        // Charges nothing more, but checks the limit.
        self.memory_left(bytes_read).charge(0)
    }

    /// Memory budget after `bytes_read` bytes of input: the bytes spent so far, and a limit in proportion to the input.
    pub(crate) fn memory_left(self, bytes_read: u64) -> MemoryLeft {
        let limit = bytes_read
            .saturating_mul(self.ratio)
            .saturating_add(Limits::MEMORY_FLOOR);
        MemoryLeft {
            spent: self.spent,
            limit,
        }
    }
}

/// Memory budget of a report after its profile was read, in bytes.
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
    /// Counts `bytes` more of memory that the report uses. Fails if the limit is exceeded.
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

/// Reserves capacity for `additional` more items of a table that may take a large part of the memory budget: by an
/// eighth at least, not for each item. `Vec` itself would double its capacity, to up to twice the memory that was
/// counted for the items.
pub(crate) fn reserve_in_steps<T>(table: &mut Vec<T>, additional: usize) {
    if table.capacity() - table.len() < additional {
        table.reserve_exact(additional.max(table.len() / 8));
    }
}

#[cfg(test)]
mod tests {
    use super::reserve_in_steps;

    #[test]
    fn table_is_at_most_an_eighth_larger_than_its_items() {
        let mut table = Vec::new();
        let mut growths = 0;
        for item in 0..1_000_000_u32 {
            let before = table.capacity();
            reserve_in_steps(&mut table, 1);
            growths += usize::from(table.capacity() != before);
            table.push(item);
            let items = table.len();
            assert!(table.capacity() <= items + items / 8, "{items}");
        }
        assert!(growths < 200, "{growths}");
    }
}
