//! Private memory that no walked heap, stack or file explains: the heaps of other allocators lie in it.

use std::ops::Range;

use crate::heap::FoundHeap;
use crate::regions::Region;
use crate::snapshot::Registers;
use crate::snapshot_memory::SnapshotMemory;

/// Largest guard area below a stack, in bytes: larger inaccessible mappings are reserved memory.
const MAX_GUARD_SIZE: u64 = 64 << 10;

/// Resident bytes of anonymous private memory outside of the walked heaps, the stacks and the files' variables.
pub(super) fn foreign_bytes(view: &SnapshotMemory, threads: &[Registers], heap: &FoundHeap) -> u64 {
    let mut walked = heap.excluded.clone();
    walked.sort_by_key(|range| range.start);
    let is_foreign = |region: &&Region| {
        let is_anonymous = !region.is_file && !region.is_shared && region.is_writable;
        let holds = |address: u64| region.range.contains(&address);
        let is_stack = region.name == "[stack]"
            || threads
                .iter()
                .any(|thread| holds(thread.stack) || holds(thread.control_block))
            || has_guard_below(view, region);
        is_anonymous && !is_stack && view.owning_file_region(region.range.start).is_none()
    };
    let regions = view.regions.iter().filter(is_foreign);
    let pages = regions.flat_map(|region| &region.pages);
    pages.map(|pages| bytes_outside(pages, &walked)).sum()
}

/// Whether a guard area lies right below a mapping, as below a stack, also of a thread that has ended.
fn has_guard_below(view: &SnapshotMemory, region: &Region) -> bool {
    let below = region.range.start.checked_sub(1);
    below
        .and_then(|below| view.region(below))
        .is_some_and(|below| {
            let size = below.range.end - below.range.start;
            below.has_no_access && !below.is_file && size <= MAX_GUARD_SIZE
        })
}

/// Bytes of a range that are in none of `others`, which are sorted by their starts.
fn bytes_outside(range: &Range<u64>, others: &[Range<u64>]) -> u64 {
    let mut start = range.start;
    let mut outside = 0;
    for other in others.iter().take_while(|other| other.start < range.end) {
        outside += other.start.saturating_sub(start);
        start = start.max(other.end);
    }
    outside + range.end.saturating_sub(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_outside_of_sorted_ranges_are_counted() {
        let check = |others: &[(u64, u64)], expected| {
            let ranges: Vec<_> = others.iter().map(|(start, end)| *start..*end).collect();
            assert_eq!(bytes_outside(&(100..200), &ranges), expected, "{others:?}");
        };
        check(&[], 100);
        check(&[(0, 100), (200, 300)], 100);
        check(&[(50, 110), (105, 120), (150, 160)], 70);
        check(&[(0, 150), (10, 20), (190, 500)], 40);
        check(&[(0, 300)], 0);
    }
}
