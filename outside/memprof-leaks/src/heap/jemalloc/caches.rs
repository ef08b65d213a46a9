//! Freed objects in the caches of threads, `cache_bin_t` (`cache_bin.h`): their slabs count them as used.

use std::ops::Range;

use super::super::FoundHeap;
use crate::objects::Objects;
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Bytes below a thread's control block that contain jemalloc's thread-local variables, which use the
/// initial-exec model.
const TLS_BYTES: u64 = 8192;
/// Bytes of a bin.
const BIN_SIZE: u64 = 24;
/// Least number of adjacent bins that make a cache; it has one for each size class.
const MIN_BINS: usize = 20;

/// Bin of a cache, a list of freed objects: the used part of an array that grows downwards.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CacheBin {
    array: Range<u64>,
    used: Range<u64>,
}

/// Adds the objects in the threads' caches to `heap.cached`. The caches' arrays still have the addresses of former
/// entries in their unused parts: excludes them from the roots, and marks the objects that contain them as opaque, so
/// that they are not scanned.
pub(super) fn add_cached_objects(
    view: &SnapshotMemory,
    threads: &[Registers],
    heap: &mut FoundHeap,
) {
    let objects = Objects::new(std::mem::take(&mut heap.spans));
    for thread in threads {
        let start = thread.control_block.saturating_sub(TLS_BYTES) & !7;
        for bin in find_cache_bins(view, start..thread.control_block) {
            let entries = bin
                .used
                .clone()
                .step_by(8)
                .filter_map(|entry| view.read_word(entry));
            let is_start = |address: &u64| {
                objects
                    .object_at(*address)
                    .is_some_and(|object| object.range.start == *address)
            };
            heap.cached.extend(entries.filter(is_start));
            // The array is an object of the heap itself.
            heap.opaque.extend(
                objects
                    .object_at(bin.array.start)
                    .map(|object| object.range.start),
            );
            heap.excluded.push(bin.array);
        }
    }
    heap.spans = objects.into_spans();
}

/// Finds the bins of caches in a range of thread-local variables: rows of at least [`MIN_BINS`] consistent bins.
fn find_cache_bins(view: &SnapshotMemory, variables: Range<u64>) -> Vec<CacheBin> {
    let mut memory = CachedReader::new(view);
    let mut all = Vec::new();
    let mut address = variables.start;
    while address < variables.end {
        let bins = (address..variables.end).step_by(BIN_SIZE as usize);
        let row: Vec<CacheBin> = bins
            .map_while(|bin| {
                let [head, bounds] = [memory.read_word(bin)?, memory.read_word(bin + 16)?];
                parse_cache_bin(head, bounds)
            })
            .collect();
        match row.len() {
            length if length >= MIN_BINS => {
                address += length as u64 * BIN_SIZE;
                all.extend(row);
            }
            _ => address += 8,
        }
    }
    all
}

/// Parses a bin. `head` is its first word, the address of its lowest entry. `bounds` is its third word, which has the
/// lowest 16 bits of four numbers: of `head` when the bin last had fewest entries, of the array's start and end, and in
/// 5.3.1 the largest number of entries. `None` if these are inconsistent, or `head` is no address in user space.
fn parse_cache_bin(head: u64, bounds: u64) -> Option<CacheBin> {
    let part = |shift: u32| (bounds >> shift) as u16;
    let (fewest, full, empty, max) = (part(0), part(16), part(32), part(48));
    // Differences of the lowest 16 bits are exact, because an array has less than 64 KiB.
    let length = empty.wrapping_sub(full);
    let used = empty.wrapping_sub(head as u16);
    let is_consistent = length > 0
        && length.is_multiple_of(8)
        && used.is_multiple_of(8)
        && used <= length
        && empty.wrapping_sub(fewest) <= length
        && (max == 0 || u32::from(length) == 8 * u32::from(max))
        && head > 1 << 16
        && head < 1 << 47;
    let end = head.checked_add(used.into())?;
    is_consistent.then(|| CacheBin {
        array: end - u64::from(length)..end,
        used: head..end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consistent_bin_is_array_with_used_part() {
        let check = |head, words: [u64; 4], expected: Option<(Range<u64>, Range<u64>)>| {
            let [fewest, full, empty, max] = words;
            let found = parse_cache_bin(head, fewest | full << 16 | empty << 32 | max << 48);
            assert_eq!(found.map(|bin| (bin.array, bin.used)), expected);
        };
        let base = 0x7f00_0000_0000;
        let words = [0x1040, 0x1000, 0x1040, 0];
        check(
            base + 0x1020,
            words,
            Some((base + 0x1000..base + 0x1040, base + 0x1020..base + 0x1040)),
        );
        check(
            base + 0x1040,
            words,
            Some((base + 0x1000..base + 0x1040, base + 0x1040..base + 0x1040)),
        );
        // The array crosses a multiple of 64 KiB.
        let (array, used) = (
            base + 0xfff0..base + 0x1_0010,
            base + 0xfff8..base + 0x1_0010,
        );
        check(base + 0xfff8, [0x10, 0xfff0, 0x10, 0], Some((array, used)));
        // A bin of 5.3.1 has the largest number of entries.
        let expected = Some((base + 0x1000..base + 0x1040, base + 0x1020..base + 0x1040));
        check(base + 0x1020, [0x1040, 0x1000, 0x1040, 8], expected);
        check(base + 0x1020, [0x1040, 0x1000, 0x1040, 9], None);
        check(base + 0x1021, words, None);
        check(base + 0x0ff8, words, None);
        check(base + 0x1020, [0x1040, 0x1000, 0x1000, 0], None);
        check(0x1020, words, None);
    }
}
