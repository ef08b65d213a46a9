//! The heap of jemalloc 5.3.0 and 5.3.1 on x86-64 with pages of 4 KiB, under whatever prefix and stripped.
//!
//! Each extent has a record of 128 bytes (`edata_t`, `edata.h`) in blocks of the
//! allocator's own. A slab's record proves itself: the number of free regions that it tells is that of the ones in
//! its bitmap, and its regions fill it. Records of large extents count where such a slab's lie beside them.

mod caches;
mod record;

use std::collections::BTreeMap;
use std::ops::Range;

use self::record::{Extent, ExtentKind, ExtentState, LENGTH};
use super::FoundHeap;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::regions::Region;
use crate::snapshot::Registers;
use crate::snapshot_memory::{BLOCK, SnapshotMemory};

/// Blocks of the allocator's own memory begin at multiples of this and are as long, at least.
const OWN_BLOCK: u64 = 2 << 20;
/// So many slabs must prove themselves, else there is no such heap.
const SLABS: usize = 4;
/// An object that is as large has a span of its own.
const LARGE: u64 = 64 << 10;

/// What is kept of an extent while the heap is walked: of a slab, its bitmap too.
const EXTENT: usize = size_of::<Extent>() + 64;

/// The heap; `None` where there is none of this form.
///
/// # Errors
/// `Memory`.
pub(crate) fn heap(
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
        *blocks.entry(extent.record / OWN_BLOCK).or_default() += 1;
    }
    if blocks.values().sum::<usize>() < SLABS {
        return Ok(None);
    }
    found.retain(|extent| blocks.contains_key(&(extent.record / OWN_BLOCK)));
    found.sort_by_key(|extent| (extent.range.start, extent.state != ExtentState::Active));
    let mut heap = FoundHeap::default();
    heap.own.extend(
        blocks
            .keys()
            .map(|block| block * OWN_BLOCK..(block + 1) * OWN_BLOCK),
    );
    let mut end = 0;
    found.retain(|extent| {
        let is_apart = extent.range.start >= end;
        if is_apart {
            end = extent.range.end;
        }
        is_apart
    });
    heap.own
        .extend(found.iter().map(|extent| extent.range.clone()));
    found.retain(|extent| extent.state == ExtentState::Active);
    heap.contexts
        .extend(found.iter().filter_map(Extent::context));
    let mut meanwhile = *budget;
    meanwhile.take((found.len() * EXTENT) as u64)?;
    let mut take = |bytes| meanwhile.take(bytes).and_then(|()| budget.take(bytes));
    let (large, small): (Vec<_>, Vec<_>) = found.into_iter().partition(is_large);
    for extent in large {
        take(Span::memory(0, 1))?;
        heap.spans.push(Span::whole(extent.object()));
    }
    let is_run = |one: &Extent, next: &Extent| {
        one.range.end == next.range.start && granule(one) == granule(next)
    };
    for run in small.chunk_by(is_run) {
        let Range { start, end } = whole(run);
        take(Span::memory(end - start, granule(&run[0])))?;
        heap.spans.push(span(run));
    }
    caches::find(view, threads, &mut heap);
    Ok(Some(heap))
}

fn is_large(extent: &Extent) -> bool {
    matches!(extent.kind, ExtentKind::Large { .. })
        && extent.range.end - extent.range.start >= LARGE
}

/// Of which the size of each object is a multiple: only one class is smaller.
fn granule(extent: &Extent) -> u64 {
    extent.size.min(16)
}

/// The memory of adjacent extents.
fn whole(run: &[Extent]) -> Range<u64> {
    run[0].range.start..run[run.len() - 1].range.end
}

fn span(run: &[Extent]) -> Span {
    let mut span = Span::new(whole(run), granule(&run[0]), 0);
    for extent in run {
        match &extent.kind {
            ExtentKind::Slab { free } => {
                let starts = (extent.range.start..extent.range.end).step_by(extent.size as usize);
                for (region, start) in starts.enumerate() {
                    span.add_object(start, free[region / 64] >> (region % 64) & 1 == 0);
                }
            }
            ExtentKind::Large { .. } => {
                let Range { start, end } = extent.object();
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

/// Adds what looks like a record in a mapping.
fn add_extents(
    view: &SnapshotMemory,
    region: &Region,
    budget: &MemoryBudget,
    found: &mut Vec<Extent>,
) -> Result<(), Error> {
    if !region.is_writable || region.is_file || region.is_shared {
        return Ok(());
    }
    let mut block = vec![0; BLOCK];
    for pages in &region.pages {
        for start in pages.clone().step_by(BLOCK) {
            let length = (pages.end - start).min(BLOCK as u64) as usize;
            let read = view.read(start, &mut block[..length]);
            let records = block[..read].chunks_exact(LENGTH).enumerate();
            found.extend(records.filter_map(|(at, bytes)| {
                let extent = record::parse(bytes, start + (at * LENGTH) as u64)?;
                let is_mapped = |address| {
                    view.region(address)
                        .is_some_and(|region| region.is_writable)
                };
                (is_mapped(extent.range.start) && is_mapped(extent.range.end - 1)).then_some(extent)
            }));
            budget.require((found.len() * EXTENT) as u64)?;
        }
    }
    Ok(())
}
