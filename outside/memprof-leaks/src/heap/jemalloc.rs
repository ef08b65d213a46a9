//! Heap of jemalloc 5.3.0 and 5.3.1 on x86-64 with pages of 4 KiB, with any prefix, also stripped.
//!
//! Each extent has a record of 128 bytes (`edata_t`, `edata.h`) in the allocator's own blocks. A slab's
//! record is recognized because its number of free regions equals the number of ones in its bitmap, and its
//! regions fill the slab. Records of large extents count if records of slabs lie in the same block.

mod caches;
mod record;

use std::collections::BTreeMap;
use std::ops::Range;

use self::record::{Extent, ExtentKind, ExtentState, RECORD_SIZE};
use super::{FoundHeap, UnusedMemory};
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::regions::Region;
use crate::snapshot::Registers;
use crate::snapshot_memory::{BLOCK_SIZE, SnapshotMemory};

/// Alignment and least size of blocks of the allocator's own memory.
const OWN_BLOCK_SIZE: u64 = 2 << 20;
/// Least number of slabs; with fewer, there is no jemalloc.
const MIN_SLABS: usize = 4;
/// Size in bytes from which an object has a span of its own.
const LARGE_OBJECT_SIZE: u64 = 64 << 10;

/// Bytes per extent while the heap is walked, with a slab's bitmap.
const BYTES_PER_EXTENT: usize = size_of::<Extent>() + 64;

/// Finds the extents of a jemalloc, and walks its heap. `None` if the process has none of a supported version, or fewer
/// than [`MIN_SLABS`] slabs. Fails with `Memory` if the search needs more memory than `--max-memory`.
pub(crate) fn walk_heap(
    view: &SnapshotMemory,
    threads: &[Registers],
    budget: &mut MemoryBudget,
) -> Result<Option<FoundHeap>, Error> {
    let mut found = Vec::new();
    for region in &view.regions {
        add_extents(view, region, budget, &mut found)?;
    }
    let mut blocks: BTreeMap<u64, usize> = BTreeMap::new();
    for extent in found
        .iter()
        .filter(|extent| matches!(extent.kind, ExtentKind::Slab { .. }))
    {
        *blocks.entry(extent.record / OWN_BLOCK_SIZE).or_default() += 1;
    }
    if blocks.values().sum::<usize>() < MIN_SLABS {
        return Ok(None);
    }
    // A record outside the blocks with slabs may be other data that resembles one.
    found.retain(|extent| blocks.contains_key(&(extent.record / OWN_BLOCK_SIZE)));
    // If two extents overlap, the first is kept; at the same address, the active one.
    found.sort_by_key(|extent| (extent.range.start, extent.state != ExtentState::Active));
    // The blocks with the records are the allocator's own memory.
    let mut heap = FoundHeap::default();
    heap.excluded.extend(
        blocks
            .keys()
            .map(|block| block * OWN_BLOCK_SIZE..(block + 1) * OWN_BLOCK_SIZE),
    );
    let mut end = 0;
    found.retain(|extent| {
        let is_apart = extent.range.start >= end;
        if is_apart {
            end = extent.range.end;
        }
        is_apart
    });
    heap.excluded
        .extend(found.iter().map(|extent| extent.range.clone()));
    let idle = found
        .iter()
        .filter(|extent| extent.state == ExtentState::Idle);
    heap.unused.extend(idle.map(|extent| UnusedMemory {
        range: extent.range.clone(),
        is_purgeable: true,
    }));
    found.retain(|extent| extent.state == ExtentState::Active);
    heap.contexts
        .extend(found.iter().filter_map(Extent::profiler_context));
    // The memory of `found` counts only while the heap is walked, the spans' memory also later.
    let mut while_walking = *budget;
    while_walking.reserve((found.len() * BYTES_PER_EXTENT) as u64)?;
    let mut reserve = |bytes| {
        while_walking
            .reserve(bytes)
            .and_then(|()| budget.reserve(bytes))
    };
    let (large, small): (Vec<_>, Vec<_>) = found.into_iter().partition(has_own_span);
    for extent in large {
        reserve(Span::memory_size(0, 1, 0))?;
        heap.spans.push(Span::single_object(extent.object_range()));
    }
    let is_run = |one: &Extent, next: &Extent| {
        one.range.end == next.range.start && span_granule(one) == span_granule(next)
    };
    for run in small.chunk_by(is_run) {
        let Range { start, end } = memory_of_run(run);
        reserve(Span::memory_size(end - start, span_granule(&run[0]), 0))?;
        heap.spans.push(span_of_run(run));
    }
    caches::add_cached_objects(view, threads, &mut heap);
    Ok(Some(heap))
}

/// Whether an extent is so large that its object has a span of its own.
fn has_own_span(extent: &Extent) -> bool {
    matches!(extent.kind, ExtentKind::Large { .. })
        && extent.range.end - extent.range.start >= LARGE_OBJECT_SIZE
}

/// Bytes per bit of the span of an extent: 16, or 8 for the smallest size class. All other sizes are multiples of 16.
fn span_granule(extent: &Extent) -> u64 {
    extent.size.min(16)
}

/// Address range of adjacent extents; `run` is sorted and not empty.
fn memory_of_run(run: &[Extent]) -> Range<u64> {
    run[0].range.start..run[run.len() - 1].range.end
}

/// Span with the objects of adjacent extents. Free regions, and the padding around a large object, are unused objects.
fn span_of_run(run: &[Extent]) -> Span {
    let mut span = Span::new(memory_of_run(run), span_granule(&run[0]), 0);
    for extent in run {
        match &extent.kind {
            ExtentKind::Slab { free } => {
                let starts = (extent.range.start..extent.range.end).step_by(extent.size as usize);
                for (region, start) in starts.enumerate() {
                    span.add_object(start, free[region / 64] >> (region % 64) & 1 == 0);
                }
            }
            ExtentKind::Large { .. } => {
                let Range { start, end } = extent.object_range();
                span.add_object(extent.range.start, false);
                span.add_object(start, true);
                if end < extent.range.end {
                    span.add_object(end, false);
                }
            }
        }
    }
    span
}

/// Appends to `found` the extents whose records are in a mapping. Some may come from words that only resemble a record.
/// Searches only private anonymous memory. Fails with `Memory` if the extents need more than `--max-memory`.
fn add_extents(
    view: &SnapshotMemory,
    region: &Region,
    budget: &MemoryBudget,
    found: &mut Vec<Extent>,
) -> Result<(), Error> {
    if !region.is_writable || region.is_file || region.is_shared {
        return Ok(());
    }
    let mut block = vec![0; BLOCK_SIZE];
    for pages in &region.pages {
        for start in pages.clone().step_by(BLOCK_SIZE) {
            let length = (pages.end - start).min(BLOCK_SIZE as u64) as usize;
            let read = view.read(start, &mut block[..length]);
            let records = block[..read].chunks_exact(RECORD_SIZE).enumerate();
            found.extend(records.filter_map(|(index, bytes)| {
                let extent = record::parse_record(bytes, start + (index * RECORD_SIZE) as u64)?;
                let is_mapped = |address| {
                    view.region(address)
                        .is_some_and(|region| region.is_writable)
                };
                (is_mapped(extent.range.start) && is_mapped(extent.range.end - 1)).then_some(extent)
            }));
            budget.require_bytes((found.len() * BYTES_PER_EXTENT) as u64)?;
        }
    }
    Ok(())
}
