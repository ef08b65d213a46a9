//! Finds and walks the heaps of a process. No symbols are needed: a structure counts as a heap only if its fields are
//! consistent.

mod glibc;
mod jemalloc;
mod pymalloc;
mod unsupported;

use std::ops::Range;

pub(crate) use self::pymalloc::PoolHeader;

use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::snapshot::Registers;
use crate::snapshot_memory::SnapshotMemory;
use crate::unsearched::Unsearched;

/// Result of walking the heaps of one or more allocators.
#[derive(Debug, Default)]
pub(crate) struct FoundHeap {
    /// Address ranges with objects, and the objects' bounds.
    pub(crate) spans: Vec<Span>,
    /// Addresses of freed objects in the allocator's caches, which the spans count as used.
    pub(crate) cached: Vec<u64>,
    /// Memory of Python's pools, by address.
    pub(crate) pools: Vec<Range<u64>>,
    /// Objects of `cached` that lie in no thread's cache, but in glibc's fast bins.
    pub(crate) fast_bins: Vec<u64>,
    /// Free memory outside of the spans.
    pub(crate) unused: Vec<UnusedMemory>,
    /// Addresses of objects that the allocator uses itself. They hold no pointers.
    pub(crate) opaque: Vec<u64>,
    /// Addresses of objects whose stacks the allocator's profiler may have, each with the profiler's context.
    pub(crate) contexts: Vec<(u64, u64)>,
    /// Memory that is not scanned as a root: the heap, whose objects are scanned when they are reached, and
    /// the allocator's own data.
    pub(crate) excluded: Vec<Range<u64>>,
    /// Inconsistent parts of the heap. They are scanned for pointers, and none of their objects is reported
    /// as leaked.
    pub(crate) unproven: Vec<String>,
    /// Heaps that memprof cannot read.
    pub(crate) unreadable: Vec<Unsearched>,
    /// Reasons why the result may be incomplete.
    pub(crate) warnings: Vec<String>,
}

/// Memory of an allocator that holds no objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnusedMemory {
    pub(crate) range: Range<u64>,
    /// Whether a purge returns it to the kernel.
    pub(crate) is_purgeable: bool,
}

/// Least anonymous memory, in bytes, that may contain a heap that was not found. The loader takes two pages for its own
/// lists, so it is more than these.
const MIN_HEAP_SIZE: u64 = 12 << 10;

/// Bytes at the start of a free chunk's memory that `malloc_trim(3)` keeps: the chunk's list pointers
/// (`struct malloc_chunk` without the header).
pub(crate) const PAGE_TRIM_GAP: u64 = 32;

/// Finds and walks the heaps of glibc's malloc, jemalloc and pymalloc in a process. Returns the allocators' names and
/// the merged result. `pool_size` are the bytes of a pool of pymalloc; `None` if pools are not to be walked.
///
/// # Errors
/// `NoHeap`: the process has a heap with most of its objects, and memprof cannot read it; `Memory`: the search needs
/// more memory than `--max-memory`.
pub(crate) fn find_heaps(
    view: &SnapshotMemory,
    threads: &[Registers],
    pool_size: Option<u64>,
    budget: &mut MemoryBudget,
) -> Result<(Vec<&'static str>, FoundHeap), Error> {
    let pools = pool_size.map(|size| pymalloc::walk_pools(view, size, budget));
    let pools = pools.transpose()?.unwrap_or_default();
    let found = [
        (
            "glibc",
            glibc::walk_heap(view, threads, &pools.pools, budget)?,
        ),
        ("jemalloc", jemalloc::walk_heap(view, threads, budget)?),
    ];
    let (mut names, mut all) = (Vec::new(), FoundHeap::default());
    for (name, heap) in found {
        names.extend(heap.as_ref().map(|_| name));
        all.extend(heap.unwrap_or_default());
    }
    all.extend(pools);
    let unsupported = unsupported::find_unsupported_heaps(view, threads, &names, &all);
    if let Some(reason) = unsupported.refusal {
        return Err(Error::NoHeap(reason));
    }
    // A program with the C library's malloc that has allocated nothing yet has no heap, and too little memory for
    // another allocator's heap.
    if names.is_empty() && !(unsupported.is_of_libc && unsupported.foreign < MIN_HEAP_SIZE) {
        let reason = glibc::unknown_release_reason(view).unwrap_or_else(|| {
            "found neither a heap of glibc's malloc nor one of jemalloc 5.3".to_owned()
        });
        return Err(Error::NoHeap(reason));
    }
    if !all.pools.is_empty() {
        names.push("pymalloc");
    }
    all.unreadable.extend(unsupported.parts);
    all.warnings.extend(unsupported.warning);
    Ok((names, all))
}

impl FoundHeap {
    /// Appends another allocator's result.
    pub(crate) fn extend(&mut self, other: Self) {
        self.spans.extend(other.spans);
        self.cached.extend(other.cached);
        self.pools.extend(other.pools);
        self.fast_bins.extend(other.fast_bins);
        self.unused.extend(other.unused);
        self.opaque.extend(other.opaque);
        self.contexts.extend(other.contexts);
        self.excluded.extend(other.excluded);
        self.unproven.extend(other.unproven);
        self.unreadable.extend(other.unreadable);
        self.warnings.extend(other.warnings);
    }
}
