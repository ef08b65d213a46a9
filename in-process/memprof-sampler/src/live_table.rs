//! Live table: samples whose blocks were not freed, by address. It is lock-free, so signal handlers and re-entry are
//! safe.
#![expect(unsafe_code, reason = "tables outside of every allocator")]

use core::mem::offset_of;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Acquire},
};

use crate::address_hash::AddressHash;
use crate::mapping;

mod bucket;

use bucket::{Bucket, CellData, WAYS};
pub(crate) use bucket::{ClaimedCell, Sample};

/// Sizes of the tables, in buckets. The next table is mapped when the earlier ones are full. Together they hold 1.4
/// million samples in 34 MB.
pub(crate) const BUCKETS_PER_TABLE: [usize; 4] = [1 << 11, 1 << 13, 1 << 15, 1 << 17];

/// Live samples of the process.
#[repr(C)]
pub(crate) struct LiveTable {
    tables: [AtomicPtr<Bucket>; BUCKETS_PER_TABLE.len()],
}

impl LiveTable {
    pub(crate) const fn new() -> Self {
        Self {
            tables: [const { AtomicPtr::new(ptr::null_mut()) }; BUCKETS_PER_TABLE.len()],
        }
    }

    /// Maps the first table, unless it is mapped already. Returns false if the kernel has no memory.
    pub(crate) fn map_first_table(&self) -> bool {
        self.get_or_map_table(0).is_some()
    }

    /// Claims an empty cell for a sample at `address`, whose hash is `hash`. Maps the next table if the address's
    /// buckets in the earlier ones are full. `None` if they are full in all tables, or the kernel has no memory for a
    /// table.
    pub(crate) fn claim_empty_cell(
        &self,
        hash: AddressHash,
        address: usize,
    ) -> Option<ClaimedCell<'_>> {
        (0..BUCKETS_PER_TABLE.len()).find_map(|generation| {
            let mut buckets = candidate_buckets(self.get_or_map_table(generation)?, hash);
            buckets.find_map(|bucket| bucket.claim_empty_cell(address))
        })
    }

    /// Claims the cell of the sample at an address. `None` if there is no such sample, or another thread has claimed
    /// its cell.
    pub(crate) fn claim_sample_cell(
        &self,
        hash: AddressHash,
        address: usize,
    ) -> Option<ClaimedCell<'_>> {
        let mut buckets = self
            .mapped_tables()
            .flat_map(|table| candidate_buckets(table, hash));
        buckets.find_map(|bucket| bucket.claim_sample_cell(address))
    }

    /// Visits each sample with its address. May miss samples that are inserted or removed during the visits.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize, Sample)) {
        for bucket in self.mapped_tables().flatten() {
            bucket.visit_samples(&mut visit);
        }
    }

    /// Removes all samples, after passing each to `drained`, then releases the tables' memory to the kernel. Calls
    /// `wait` while another thread has claimed a cell, and returns false as soon as `wait` does. The caller has closed
    /// the gate, so a hook that claims an empty cell in the meantime leaves it empty.
    pub(crate) fn drain(
        &self,
        mut drained: impl FnMut(&ClaimedCell<'_>),
        mut wait: impl FnMut() -> bool,
    ) -> bool {
        let mut buckets = self.mapped_tables().flatten();
        let is_empty = buckets.all(|bucket| bucket.drain(&mut drained, &mut wait));
        if is_empty {
            for table in self.mapped_tables() {
                // SAFETY: a mapping of `get_or_map_table`, whose cells are all empty. The gate is closed: a hook that
                // claims a cell now empties it again, so zeros do no harm.
                unsafe { mapping::release_pages(table.as_ptr().cast_mut(), table.len()) };
            }
        }
        is_empty
    }

    /// Empties the cells that threads of the parent process had claimed. A forked child calls this, because those
    /// threads do not exist in it.
    pub(crate) fn clear_claimed_cells(&self) {
        self.mapped_tables()
            .flatten()
            .for_each(Bucket::clear_claimed_cells);
    }

    /// Returns the number of bytes mapped for the tables, touched or not.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapped_tables().map(size_of_val).sum()
    }

    /// Iterates over the tables that are mapped.
    fn mapped_tables(&self) -> impl Iterator<Item = &[Bucket]> {
        let tables = self.tables.iter().zip(BUCKETS_PER_TABLE);
        tables.filter_map(|(table, count)| mapped_buckets(table, count))
    }

    /// Returns the table number `generation`, and maps it if it is missing. `None` if there is no table of that number,
    /// or the kernel has no memory.
    fn get_or_map_table(&self, generation: usize) -> Option<&[Bucket]> {
        let (table, count) = (
            self.tables.get(generation)?,
            *BUCKETS_PER_TABLE.get(generation)?,
        );
        if let Some(table) = mapped_buckets(table, count) {
            return Some(table);
        }
        let fresh = mapping::map_zeros::<Bucket>(count)?;
        if table
            .compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire)
            .is_err()
        {
            // SAFETY: only this thread has the address of `fresh`, because another thread's mapping was stored.
            unsafe { mapping::unmap(fresh, count) };
        }
        mapped_buckets(table, count)
    }
}

/// Returns a table's buckets. `None` if it is not mapped. `count` must be the number with which the table's mapping was
/// made.
fn mapped_buckets(table: &AtomicPtr<Bucket>, count: usize) -> Option<&[Bucket]> {
    let start = table.load(Acquire);
    if start.is_null() {
        return None;
    }
    // SAFETY: a mapping of `count` buckets, which stays mapped and whose zeros are valid atomics.
    Some(unsafe { core::slice::from_raw_parts(start, count) })
}

/// Iterates over the two buckets of a table that may hold an address.
fn candidate_buckets(table: &[Bucket], hash: AddressHash) -> impl Iterator<Item = &Bucket> {
    let indices = bucket_indices(table.len(), hash).into_iter();
    indices.filter_map(|index| table.get(index))
}

/// Returns the indices of the two different buckets that may hold an address, in a table of `count` buckets.
fn bucket_indices(count: usize, hash: AddressHash) -> [usize; 2] {
    let (first, second) = (
        hash.locality_bits(count.ilog2()),
        hash.mixed_bits(count.ilog2()),
    );
    // If both hashes select one bucket, the second one is its neighbour.
    [first, if second == first { first ^ 1 } else { second }]
}

/// Iterates over the address ranges of the tables that start at `tables` (0: not mapped).
pub(crate) fn table_ranges(
    tables: [u64; BUCKETS_PER_TABLE.len()],
) -> impl Iterator<Item = Range<u64>> {
    let tables = tables.into_iter().zip(BUCKETS_PER_TABLE);
    let mapped = tables.filter(|(table, _)| *table != 0);
    mapped.map(|(table, count)| {
        let end = table.wrapping_add((count * size_of::<Bucket>()) as u64);
        table..end
    })
}

/// Finds the sample at an address in another process, whose tables start at `tables` (0: not mapped). `word` reads
/// eight bytes of that process. Returns the sample's stack record. `None` if there is no such sample, or memory is
/// unreadable.
pub(crate) fn find_remote_record(
    tables: [u64; BUCKETS_PER_TABLE.len()],
    hash: AddressHash,
    address: u64,
    mut word: impl FnMut(u64) -> Option<u64>,
) -> Option<u32> {
    let tables = tables.into_iter().zip(BUCKETS_PER_TABLE);
    let mut buckets = tables
        .filter(|(table, _)| *table != 0)
        .flat_map(|(table, count)| {
            let offsets = bucket_indices(count, hash).map(|index| index * size_of::<Bucket>());
            offsets.map(|offset| table.wrapping_add(offset as u64))
        });
    buckets.find_map(|bucket| {
        let mut word = |offset: usize| word(bucket.wrapping_add(offset as u64));
        let addresses = offset_of!(Bucket, addresses);
        let way = (0..WAYS).find(|way| word(addresses + 8 * way) == Some(address))?;
        let data = offset_of!(Bucket, samples) + way * size_of::<CellData>();
        // The record is the lower half of the word (little endian).
        Some(word(data + offset_of!(CellData, record))? as u32)
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::Arc;
    use std::sync::atomic::Ordering::Release;
    use std::thread;
    use std::vec::Vec;

    use super::*;

    impl LiveTable {
        fn insert(&self, address: usize, sample: Sample) {
            self.claim_empty_cell(AddressHash::new(address), address)
                .unwrap()
                .fill(sample);
        }

        fn remove(&self, address: usize) -> Option<Sample> {
            let claim = self.claim_sample_cell(AddressHash::new(address), address)?;
            Some(claim.sample())
        }
    }

    #[test]
    fn removed_sample_is_not_found_again() {
        let live = LiveTable::new();
        let address = 0x7f00_0000_1000;
        let sample = Sample { size: 7, record: 9 };
        assert_eq!(live.remove(address), None);
        live.insert(address, sample);
        assert_eq!(live.remove(address), Some(sample));
        assert_eq!(live.remove(address), None);
    }

    #[test]
    fn cell_that_was_being_written_at_a_fork_is_visited_later() {
        let live = LiveTable::new();
        let (address, sample) = (0x7f00_0000_1000, Sample { size: 7, record: 9 });
        // A thread of the parent has claimed the cell, and written a part of the sample.
        let hash = AddressHash::new(address);
        core::mem::forget(live.claim_empty_cell(hash, address));
        let claimed = || {
            live.mapped_tables().flatten().flat_map(|bucket| {
                let cells = bucket.addresses.iter().zip(&bucket.samples);
                cells.filter(|(cell, _)| cell.load(Acquire) != 0)
            })
        };
        assert_eq!(claimed().count(), 1);
        claimed().for_each(|(_, data)| data.version.store(1, Release));
        live.clear_claimed_cells();
        assert_eq!(claimed().count(), 0);
        live.insert(address, sample);
        let mut visited = Vec::new();
        live.for_each(|address, sample| visited.push((address, sample)));
        assert_eq!(visited, [(address, sample)]);
    }

    #[test]
    fn samples_beyond_the_first_table_are_found() {
        let live = LiveTable::new();
        let addresses: Vec<usize> = (0..100_000).map(|index| 0x10_0000 + index * 48).collect();
        for (index, address) in addresses.iter().enumerate() {
            let sample = Sample {
                size: index as u64,
                record: 1,
            };
            live.insert(*address, sample);
        }
        for (index, address) in addresses.iter().enumerate() {
            let sample = live.remove(*address).unwrap();
            assert_eq!(sample.size, index as u64);
        }
        let mut drained = 0;
        for address in &addresses {
            live.insert(*address, Sample { size: 1, record: 1 });
        }
        assert!(live.drain(|_| drained += 1, || false));
        assert_eq!(drained, addresses.len());
        live.for_each(|address, _| panic!("{address:x}"));
    }

    #[test]
    fn for_each_visits_remaining_samples_once() {
        let live = LiveTable::new();
        let sample = |index: usize| Sample {
            size: index as u64,
            record: 3,
        };
        for index in 1..=10_000 {
            live.insert(index * 64, sample(index));
        }
        for index in (1..=10_000).filter(|index| index % 3 != 0) {
            assert_eq!(live.remove(index * 64), Some(sample(index)));
        }
        let mut visited = Vec::new();
        live.for_each(|address, found| {
            assert_eq!(found, sample(address / 64));
            visited.push(address / 64);
        });
        visited.sort_unstable();
        assert!(visited.into_iter().eq((3..=10_000).step_by(3)));
    }

    #[test]
    fn thread_removes_sample_of_another_thread() {
        const EACH: usize = 20_000;
        let live = Arc::new(LiveTable::new());
        let (send, receive) = std::sync::mpsc::sync_channel::<usize>(64);
        let inserter = {
            let live = Arc::clone(&live);
            move || {
                for index in 1..=EACH {
                    let address = index * 4096;
                    let sample = Sample {
                        size: address as u64,
                        record: 1,
                    };
                    live.insert(address, sample);
                    send.send(address).unwrap();
                }
            }
        };
        let inserter = thread::spawn(inserter);
        for address in receive {
            let sample = live.remove(address).unwrap();
            assert_eq!(sample.size, address as u64);
        }
        inserter.join().unwrap();
    }
}
