//! Freed objects in the caches of threads, `cache_bin_t` (`cache_bin.h`): they look used.

use std::ops::Range;

use super::super::FoundHeap;
use crate::objects::Objects;
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// jemalloc's thread-local variables lie right below the thread's control block: their model is initial-exec.
const VARIABLES: u64 = 8192;
/// Of a bin, in bytes.
const LENGTH: u64 = 24;
/// So many bins in a row are a cache: there is one for each size class.
const BINS: usize = 20;

/// A list of freed objects: the used part of an array that grows downwards.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CacheBin {
    array: Range<u64>,
    used: Range<u64>,
}

/// Tells which objects lie in caches, and where the caches are: what their arrays held before is no pointer.
pub(super) fn find(view: &SnapshotMemory, threads: &[Registers], heap: &mut FoundHeap) {
    let objects = Objects::new(std::mem::take(&mut heap.spans));
    for thread in threads {
        let start = thread.control_block.saturating_sub(VARIABLES) & !7;
        for bin in bins(view, start..thread.control_block) {
            let entries = bin
                .used
                .clone()
                .step_by(8)
                .filter_map(|entry| view.word(entry));
            let is_start = |address: &u64| {
                objects
                    .object(*address)
                    .is_some_and(|object| object.range.start == *address)
            };
            heap.cached.extend(entries.filter(is_start));
            heap.silent.extend(
                objects
                    .object(bin.array.start)
                    .map(|object| object.range.start),
            );
            heap.own.push(bin.array);
        }
    }
    heap.spans = objects.into_spans();
}

/// The bins of the caches that lie there.
fn bins(view: &SnapshotMemory, variables: Range<u64>) -> Vec<CacheBin> {
    let mut memory = CachedReader::new(view);
    let mut all = Vec::new();
    let mut at = variables.start;
    while at < variables.end {
        let places = (at..variables.end).step_by(LENGTH as usize);
        let row: Vec<CacheBin> = places
            .map_while(|place| {
                let [head, bounds] = [memory.word(place)?, memory.word(place + 16)?];
                bin(head, bounds)
            })
            .collect();
        match row.len() {
            length if length >= BINS => {
                at += length as u64 * LENGTH;
                all.extend(row);
            }
            _ => at += 8,
        }
    }
    all
}

/// A bin of its first word, the address of its lowest entry, and its third: the lowest 16 bits of the addresses
/// of the fewest entries there were lately, of the full array, and of its end; in 5.3.1 also the most entries.
fn bin(head: u64, bounds: u64) -> Option<CacheBin> {
    let part = |shift: u32| (bounds >> shift) as u16;
    let (fewest, full, empty, most) = (part(0), part(16), part(32), part(48));
    let length = empty.wrapping_sub(full);
    let used = empty.wrapping_sub(head as u16);
    let is_sound = length > 0
        && length.is_multiple_of(8)
        && used.is_multiple_of(8)
        && used <= length
        && empty.wrapping_sub(fewest) <= length
        && (most == 0 || u32::from(length) == 8 * u32::from(most))
        && head > 1 << 16
        && head < 1 << 47;
    let end = head.checked_add(used.into())?;
    is_sound.then(|| CacheBin {
        array: end - u64::from(length)..end,
        used: head..end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_is_an_array_of_which_a_part_is_used() {
        let check = |head, words: [u64; 4], expected: Option<(Range<u64>, Range<u64>)>| {
            let [fewest, full, empty, most] = words;
            let found = bin(head, fewest | full << 16 | empty << 32 | most << 48);
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
        // Across the end of 64 KiB.
        let (array, used) = (
            base + 0xfff0..base + 0x1_0010,
            base + 0xfff8..base + 0x1_0010,
        );
        check(base + 0xfff8, [0x10, 0xfff0, 0x10, 0], Some((array, used)));
        // Of 5.3.1.
        let expected = Some((base + 0x1000..base + 0x1040, base + 0x1020..base + 0x1040));
        check(base + 0x1020, [0x1040, 0x1000, 0x1040, 8], expected);
        check(base + 0x1020, [0x1040, 0x1000, 0x1040, 9], None);
        check(base + 0x1021, words, None);
        check(base + 0x0ff8, words, None);
        check(base + 0x1020, [0x1040, 0x1000, 0x1000, 0], None);
        check(0x1020, words, None);
    }
}
