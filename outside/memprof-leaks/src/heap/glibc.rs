//! Heap of glibc's malloc, 2.27 and newer, on x86-64 (malloc/malloc.c, malloc/arena.c).
//!
//! An arena is recognized by the heads of its 127 bins: each points to itself, or to a chunk that points back. A heap
//! is recognized by chunks that follow each other exactly to its end; a thread's cache, by entries of the right size.
//! Memory that glibc counts but memprof does not find is recorded with its size.

mod arena;
mod caches;
mod chunks;
mod glibc_copy;
mod layout;
mod main_arena;
mod mapped;
mod parameters;
mod private_runs;

use std::ops::Range;

use self::arena::Arena;
use self::chunks::{ALIGNMENT, HEADER_SIZE, SIZE_FIELD, Segment};
use self::glibc_copy::GlibcCopy;
use self::layout::Release;
use self::parameters::Parameters;
use super::{FoundHeap, UnusedMemory};
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Finds the copies of glibc in a process, and walks the heap of all their arenas. `None` if the process has no glibc,
/// or allocated nothing with it. `others` is the memory of other allocators, by address, in which words may look like a
/// block's header.
///
/// # Errors
/// `Memory`: the search needs more memory than `--max-memory`.
pub(crate) fn walk_heap(
    view: &SnapshotMemory,
    threads: &[Registers],
    others: &[Range<u64>],
    budget: &mut MemoryBudget,
) -> Result<Option<FoundHeap>, Error> {
    let copies = GlibcCopy::find_all(view);
    let Some(first) = copies.first() else {
        return Ok(None);
    };
    let mut walk = HeapWalk::new(view, budget);
    let arenas = copies.iter().flat_map(GlibcCopy::arenas);
    walk.heap.excluded.extend(arenas.map(Arena::struct_range));
    // Objects of each copy that may be thread caches.
    let mut caches = vec![Vec::new(); copies.len()];
    for (copy, caches) in copies.iter().zip(&mut caches) {
        for arena in &copy.other_arenas {
            walk.walk_other_arena(arena)?;
        }
        caches.append(&mut walk.caches);
    }
    // The memory of main arenas is found by its form alone, so that of all other arenas is excluded before.
    for (copy, caches) in copies.iter().zip(&mut caches) {
        let may_use_brk = copies.len() == 1 || copy.may_use_brk(view);
        let brk = main_arena::brk_range(view).filter(|_| may_use_brk);
        walk.walk_main_arena(&copy.main_arena, brk, copy.parameters.as_ref())?;
        caches.append(&mut walk.caches);
    }
    let mut heap = walk.heap;
    let layout = first.main_arena.layout;
    let parameters = sum_parameters(&copies);
    let tail = layout.mapped_tail;
    let small = mapped::add_mapped_chunks(view, parameters.as_ref(), tail, others, &mut heap);
    if heap.spans.is_empty() && heap.unproven.is_empty() {
        return Ok(None);
    }
    let releases = Release::read_all(view);
    // The form of the caches is known, but the process may have none: then no chunk is cached.
    let may_have_no_caches = || {
        let is_known = !releases.is_empty() && releases.iter().all(|release| release.is_known());
        let has_none = parameters.is_some_and(|found| found.cache_count == 0);
        is_known && layout.has_late_caches || has_none
    };
    for (copy, mut caches) in copies.iter().zip(caches) {
        // A copy of glibc that allocated nothing has no caches to be found.
        if copies.len() > 1 && !copy.has_memory(view) {
            continue;
        }
        caches.extend(&small);
        caches::add_cached_objects(view, copy, &caches, may_have_no_caches, &mut heap);
    }
    caches::add_detached_fast_bin(view, threads, &mut heap);
    let unknown = releases.into_iter().filter_map(Release::reason_if_unknown);
    heap.warnings.extend(unknown);
    Ok(Some(heap))
}

/// Adds up the counters of all copies of glibc (`struct malloc_par`). `None` if those of one copy are not found, or if
/// the copies differ in the layout of chunks with mappings of their own.
fn sum_parameters(copies: &[GlibcCopy]) -> Option<Parameters> {
    let tail = |copy: &GlibcCopy| copy.main_arena.layout.mapped_tail;
    let mut found = copies.iter().map(|copy| {
        let has_same_tail = tail(copy) == tail(&copies[0]);
        copy.parameters.filter(|_| has_same_tail)
    });
    let first = found.next()??;
    found.try_fold(first, |total, own| Some(total.add_counts(&own?)))
}

/// Reason why no heap of glibc can be found: memprof does not know the release of the process's glibc. `None` if it
/// knows the release, or if the process has no glibc.
pub(crate) fn unknown_release_reason(view: &SnapshotMemory) -> Option<String> {
    Release::read_all(view)
        .into_iter()
        .find_map(Release::reason_if_unknown)
}

/// Heap of all arenas, as far as it is walked.
struct HeapWalk<'a> {
    view: &'a SnapshotMemory,
    memory: CachedReader<'a>,
    budget: &'a mut MemoryBudget,
    heap: FoundHeap,
    /// Objects that may be thread caches.
    caches: Vec<u64>,
}

impl<'a> HeapWalk<'a> {
    /// Creates the walk of a snapshot, with an empty heap. The walk reserves in `budget` the memory that memprof takes
    /// for the objects found.
    fn new(view: &'a SnapshotMemory, budget: &'a mut MemoryBudget) -> Self {
        Self {
            view,
            memory: CachedReader::new(view),
            budget,
            heap: FoundHeap::default(),
            caches: Vec::new(),
        }
    }

    /// Walks the heaps of an arena other than the main one. Records as unproven the bytes that the arena got from the
    /// kernel, but that lie in none of the heaps found. Fails with `Memory` if the heaps' objects need more than
    /// `--max-memory`.
    fn walk_other_arena(&mut self, arena: &Arena) -> Result<(), Error> {
        let heaps = arena.heaps(self.view);
        let mut bytes = 0;
        for (segment, mapped) in heaps.segments.into_iter().zip(heaps.mapped) {
            bytes += mapped.end - mapped.start;
            if self.add_segment(segment, false)?.is_some() {
                self.heap.excluded.push(mapped);
            }
        }
        self.record_missing_bytes(arena.system_bytes(self.view).saturating_sub(bytes));
        Ok(())
    }

    /// Walks the memory of a main arena. Records as unproven the bytes that the arena got from the kernel but that are
    /// not found, and memory that looks like the arena's but is more than it got. `brk` is the memory of brk(2), `None`
    /// if the arena has none of it. `parameters` have its first chunk; if they are `None`, that chunk is searched.
    /// Fails with `Memory` if the objects need more than `--max-memory`.
    fn walk_main_arena(
        &mut self,
        arena: &Arena,
        brk: Option<Range<u64>>,
        parameters: Option<&Parameters>,
    ) -> Result<(), Error> {
        let first = parameters.map(|parameters| parameters.first_chunk);
        let others = self.heap.excluded.clone();
        let view = self.view;
        let unwalked =
            main_arena::walk_segments(view, arena, brk, first, &others, &mut |segment| {
                let start = segment.start;
                let end = self.add_segment(segment, true)?;
                self.heap.excluded.extend(end.map(|end| start..end));
                Ok(end)
            })?;
        self.record_missing_bytes(unwalked.missing);
        if unwalked.surplus > 0 {
            self.heap.unproven.push(format!(
                "{} KiB that look like glibc's heap, more than it has got",
                unwalked.surplus >> 10
            ));
        }
        Ok(())
    }

    /// Walks a segment, and adds its objects and top chunk to the heap. `is_main`: it belongs to the main arena, the
    /// only one whose top chunk `malloc_trim(3)` releases. Returns the end of its memory. If its chunks cannot be
    /// followed, records it as unproven and returns `None`. Fails with `Memory` if its objects need more than
    /// `--max-memory`.
    fn add_segment(&mut self, segment: Segment, is_main: bool) -> Result<Option<u64>, Error> {
        let Range { start, end } = segment.chunks();
        // If all objects of a heap are freed, its chunks have merged with the top chunk.
        if start == segment.top {
            self.add_top_chunk(start..segment.end, is_main);
            return Ok(Some(segment.end));
        }
        self.budget
            .reserve(Span::memory_size(end - start, ALIGNMENT, SIZE_FIELD))?;
        let Some(walked) = segment.walk(&mut self.memory) else {
            self.heap.unproven.push(format!(
                "{} KiB of glibc's heap at {start:#x}, whose chunks memprof cannot follow to their end",
                (end - start) >> 10,
            ));
            return Ok(None);
        };
        if end == segment.top {
            self.add_top_chunk(end..walked.end, is_main);
        }
        self.heap.spans.push(walked.span);
        self.caches.extend(walked.caches);
        Ok(Some(walked.end))
    }

    /// Adds the top chunk of an arena, without its header, to the unused memory. Only the top chunk of the main arena
    /// (`is_main`) is purgeable.
    fn add_top_chunk(&mut self, chunk: Range<u64>, is_main: bool) {
        self.heap.unused.push(UnusedMemory {
            range: (chunk.start + HEADER_SIZE).min(chunk.end)..chunk.end,
            is_purgeable: is_main,
        });
    }

    /// Records as unproven the memory that an arena got from the kernel and that is in none of its segments. Ignores
    /// less than a page.
    fn record_missing_bytes(&mut self, bytes: u64) {
        if bytes >= PAGE_SIZE {
            let size = bytes >> 10;
            let message = format!("{size} KiB of glibc's heap, which memprof does not find");
            self.heap.unproven.push(message);
        }
    }
}
