//! Account of a process's heaps: which of their memory is resident, and in which state.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use memprof_ptrace::process::ProcStatus;

use crate::address_ranges::merge_ranges;
use crate::analysis::AnalysisOptions;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::heap::{self, FoundHeap, PAGE_TRIM_GAP};
use crate::objects::{Objects, Span};
use crate::regions::Region;
use crate::resident_pages::{PAGE_SIZE, find_resident_anonymous_pages};
use crate::snapshot::{CopyTarget, Snapshot};
use crate::snapshot_memory::SnapshotMemory;
use crate::stacks::SamplerTables;

/// Most snapshots that are taken until the heap of one is consistent.
const MAX_ATTEMPTS: usize = 3;
/// Name of a mapping of huge pages, which the kernel does not count in the resident memory.
const HUGE_PAGES_NAME: &str = "/anon_hugepage";

/// Heaps that memprof walked: their memory in bytes, by state. All but `untouched` and `huge_pages` is resident.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapResidency {
    /// Allocators whose heaps were walked.
    pub allocators: Vec<&'static str>,
    /// Live objects.
    pub live: u64,
    /// Live objects' memory that is not resident: never written to, or swapped out.
    pub untouched: u64,
    /// Live objects in huge pages of hugetlbfs, which RSS does not contain.
    pub huge_pages: u64,
    /// Freed objects in the caches of threads.
    pub thread_caches: u64,
    /// Free memory between objects, in pages that no purge releases.
    pub fragments: u64,
    /// Whole pages of free memory.
    pub free_pages: u64,
    /// Part of `free_pages` that a purge would release.
    pub purgeable: u64,
    /// Headers and tables of the allocators.
    pub metadata: u64,
    /// Anonymous memory of the whole process when it was copied (`RssAnon` of `proc_pid_status(5)`).
    pub anonymous: u64,
    /// Addresses of the heaps, sorted.
    pub ranges: Vec<Range<u64>>,
    /// Addresses of the tables of memprof's sampler.
    pub sampler_tables: Vec<Range<u64>>,
    /// Time for which all threads were stopped.
    pub stopped: Duration,
}

impl HeapResidency {
    /// Resident memory of the walked heaps in bytes.
    pub fn resident(&self) -> u64 {
        self.live + self.thread_caches + self.fragments + self.free_pages + self.metadata
    }
}

/// Takes a snapshot of a process and accounts for its heaps. Stops the process for at most `options.max_pause`. If a
/// part of a heap is inconsistent, takes another snapshot, up to `MAX_ATTEMPTS` in all.
///
/// # Errors
/// A reason why the process was not copied; `CopyEnded`: the copy was killed; `NoHeap`: memprof cannot read one of its
/// heaps, or a part of one is inconsistent.
pub fn measure_heap_residency(pid: u32, options: AnalysisOptions) -> Result<HeapResidency, Error> {
    let target = CopyTarget::inspect(pid)?;
    let mut inconsistent = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        let mut budget = MemoryBudget::new(target.status.resident, options.max_memory);
        let snapshot = target.take_snapshot(options.max_pause, budget.remaining() / 2)?;
        let measured = measure_heaps(&snapshot, &mut budget);
        let has_copy_ended = snapshot.has_copy_ended();
        // A copy that was not reaped does not change the result.
        snapshot.release(&target);
        if has_copy_ended {
            return Err(Error::CopyEnded);
        }
        match measured? {
            Ok(residency) => return Ok(residency),
            Err(parts) => inconsistent = parts,
        }
    }
    Err(Error::NoHeap(inconsistent.join("; ")))
}

/// Accounts for the heaps of a snapshot. The inner error has the parts that are unreadable or inconsistent.
fn measure_heaps(
    snapshot: &Snapshot,
    budget: &mut MemoryBudget,
) -> Result<Result<HeapResidency, Vec<String>>, Error> {
    let view = SnapshotMemory::open(snapshot)?;
    let (allocators, found) = heap::find_heaps(&view, &snapshot.threads, None, budget)?;
    for memory in view.memories() {
        memory.require_responsive_memory()?;
    }
    let unreadable = found.unreadable.iter().map(ToString::to_string);
    let unknown: Vec<_> = found.unproven.iter().cloned().chain(unreadable).collect();
    if !unknown.is_empty() {
        return Ok(Err(unknown));
    }
    let pagemap = |pid: u32| {
        let path = format!("/proc/{pid}/pagemap");
        File::open(&path).map_err(Error::with_action(path))
    };
    let (copy, live) = (pagemap(snapshot.copy_pid())?, pagemap(snapshot.pid)?);
    let pages = |is_included: &dyn Fn(&Region) -> bool| {
        let regions = view.regions.iter();
        let included = regions.filter(|region| !region.is_shared && is_included(region));
        ResidentRuns::new(included.flat_map(|region| {
            let pagemap = if region.is_uncopied { &live } else { &copy };
            find_resident_anonymous_pages(pagemap, &region.range)
        }))
    };
    let is_huge = |region: &Region| region.name.starts_with(HUGE_PAGES_NAME);
    let uncopied = pages(&|region| region.is_uncopied && !is_huge(region));
    let copied = ProcStatus::read_thread(snapshot.copy_pid())?.resident_anonymous;
    Ok(Ok(HeapResidency {
        allocators,
        anonymous: copied + uncopied.bytes_in(&(0..u64::MAX)),
        sampler_tables: SamplerTables::find(&view).table_ranges().collect(),
        stopped: snapshot.stopped,
        ..account_heaps(found, &pages(&|region| !region.is_file), &pages(&is_huge))
    }))
}

/// Resident pages, as sorted runs that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct ResidentRuns {
    runs: Vec<Range<u64>>,
    /// Resident bytes before each run.
    before: Vec<u64>,
}

impl ResidentRuns {
    /// Resident memory in `runs`, which may be in any order and overlap.
    pub(crate) fn new(runs: impl Iterator<Item = Range<u64>>) -> Self {
        let runs = merge_ranges(runs.collect());
        let lengths = runs.iter().map(|run| run.end - run.start);
        let before = lengths
            .scan(0, |sum, length| {
                let before = *sum;
                *sum += length;
                Some(before)
            })
            .collect();
        Self { runs, before }
    }

    /// The runs, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.runs.iter()
    }

    /// Resident bytes below an address, in all runs.
    fn bytes_below(&self, address: u64) -> u64 {
        let index = self.runs.partition_point(|run| run.start < address);
        let Some(last) = index.checked_sub(1) else {
            return 0;
        };
        let run = &self.runs[last];
        self.before[last] + address.min(run.end) - run.start
    }

    /// Resident bytes of a range; 0 if it is empty.
    pub(crate) fn bytes_in(&self, range: &Range<u64>) -> u64 {
        match range.is_empty() {
            true => 0,
            false => self.bytes_below(range.end) - self.bytes_below(range.start),
        }
    }
}

/// Adds up the bytes of walked heaps by state, and collects the heaps' addresses; the other fields of the result stay
/// empty. `normal` are the resident pages that RSS contains, `huge` those of hugetlbfs.
fn account_heaps(found: FoundHeap, normal: &ResidentRuns, huge: &ResidentRuns) -> HeapResidency {
    let FoundHeap {
        spans,
        mut cached,
        fast_bins,
        unused,
        excluded,
        ..
    } = found;
    // Chunks of the fast bins are free, not cached: malloc_trim(3) merges them with their neighbours first.
    let mut objects = Objects::new(spans);
    objects.exclude_cached_objects(&fast_bins);
    cached.sort_unstable();
    let mut sum = HeapResidency::default();
    let spans = objects.into_spans();
    for span in &spans {
        let accounted = account_span(span, &cached, normal, huge, &mut sum);
        let rest = normal.bytes_in(span.range()) - accounted;
        match span.has_headers() {
            true => sum.metadata += rest,
            false => sum.fragments += rest,
        }
    }
    for memory in &unused {
        let start = memory.range.start.next_multiple_of(PAGE_SIZE);
        let pages = normal.bytes_in(&(start..memory.range.end.max(start)));
        sum.free_pages += pages;
        sum.purgeable += if memory.is_purgeable { pages } else { 0 };
        sum.fragments += normal.bytes_in(&memory.range) - pages;
    }
    let ranges = spans.iter().map(|span| span.range().clone());
    // Other memory of the allocators is in no span and not free: headers and tables.
    let heap = merge_ranges(excluded.into_iter().chain(ranges).collect());
    let all: u64 = heap.iter().map(|range| normal.bytes_in(range)).sum();
    sum.metadata += all.saturating_sub(sum.resident());
    sum.ranges = heap;
    sum
}

/// Adds the objects of a span, used and free ones, to `sum`. `cached` are the starts of objects in thread caches,
/// sorted. `normal` are the resident pages that RSS contains, `huge` those of hugetlbfs. Returns the resident bytes of
/// all these objects.
fn account_span(
    span: &Span,
    cached: &[u64],
    normal: &ResidentRuns,
    huge: &ResidentRuns,
    sum: &mut HeapResidency,
) -> u64 {
    let mut accounted = 0;
    let mut free: Option<Range<u64>> = None;
    let mut end_free = |free: Option<Range<u64>>, sum: &mut HeapResidency| {
        let Some(range) = free else { return };
        let bytes = normal.bytes_in(&range);
        accounted += bytes;
        let pages = normal.bytes_in(&purgeable_pages(span, &range));
        sum.fragments += bytes - pages;
        sum.free_pages += pages;
        sum.purgeable += pages;
    };
    let mut used_bytes = 0;
    for (object, is_used) in span.all_objects() {
        let range = object.range;
        if !is_used {
            // A header between two free chunks is free memory, too.
            let start = free.take().map_or(range.start, |free| free.start);
            free = Some(start..range.end);
            continue;
        }
        end_free(free.take(), sum);
        let bytes = normal.bytes_in(&range);
        used_bytes += bytes;
        match cached.binary_search(&range.start) {
            Ok(_) => sum.thread_caches += bytes,
            Err(_) => {
                let in_huge = huge.bytes_in(&range);
                sum.live += bytes;
                sum.huge_pages += in_huge;
                sum.untouched += (range.end - range.start).saturating_sub(bytes + in_huge);
            }
        }
    }
    end_free(free, sum);
    accounted + used_bytes
}

/// Whole pages of a free range that a purge releases. Empty for a heap without headers, whose spans are pages in use.
fn purgeable_pages(span: &Span, free: &Range<u64>) -> Range<u64> {
    if !span.has_headers() {
        return 0..0;
    }
    // malloc_trim(3) keeps the header of the free chunk and its list pointers.
    let start = (free.start + PAGE_TRIM_GAP).next_multiple_of(PAGE_SIZE);
    let end = free.end / PAGE_SIZE * PAGE_SIZE;
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::UnusedMemory;

    /// Chunks as glibc lays them out, up to 0x8000: used, free to 0x6000, cached, used and in a fast bin.
    fn glibc_heap() -> FoundHeap {
        let mut span = Span::new(0x1010..0x8008, 16, 8);
        for (address, is_used) in [
            (0x1010, true),
            (0x1110, false),
            (0x6010, true),
            (0x6110, true),
            (0x7010, true),
        ] {
            span.add_object(address, is_used);
        }
        FoundHeap {
            spans: vec![span],
            cached: vec![0x6010],
            fast_bins: vec![0x7010],
            unused: vec![UnusedMemory {
                range: 0x8020..0xb000,
                is_purgeable: true,
            }],
            excluded: vec![0x1000..0x2000, 0x2000..0xb000],
            ..FoundHeap::default()
        }
    }

    fn check<const N: usize>(resident: [Range<u64>; N], expected: HeapResidency) {
        let normal = ResidentRuns::new(resident.iter().cloned());
        let found = account_heaps(glibc_heap(), &normal, &ResidentRuns::default());
        assert_eq!(found.ranges.first(), Some(&(0x1000..0xb000)));
        let found = HeapResidency {
            ranges: Vec::new(),
            ..found
        };
        let all: u64 = resident.iter().map(|run| run.end - run.start).sum();
        assert_eq!(found.resident(), all, "{resident:x?}");
        assert_eq!(found, expected, "{resident:x?}");
    }

    #[test]
    fn resident_memory_is_divided_completely() {
        let objects = [0xf8, 0xef8];
        check(
            [0x1000..0x6000, 0x6000..0xb000],
            HeapResidency {
                live: objects.iter().sum(),
                thread_caches: 0xf8,
                fragments: 0x4ef8 - 0x4000 + 0xff8 + 0xfe0,
                free_pages: 0x4000 + 0x2000,
                purgeable: 0x4000 + 0x2000,
                metadata: 0x10 + 3 * 8 + 8 + 0x18,
                ..HeapResidency::default()
            },
        );
    }

    #[test]
    fn untouched_memory_is_in_no_part() {
        let part = |free_pages| HeapResidency {
            live: 0xf8,
            untouched: 0xef8,
            fragments: 0x1000 - 0x110,
            free_pages,
            purgeable: free_pages,
            metadata: 0x18,
            ..HeapResidency::default()
        };
        check([0x1000..0x1800, 0x1800..0x2000], part(0));
        check([0x1000..0x2000, 0x3000..0x4000], part(0x1000));
    }

    #[test]
    fn huge_pages_are_not_untouched() {
        let span = Span::single_object(0x20_0010..0x40_0000);
        let found = FoundHeap {
            spans: vec![span],
            ..FoundHeap::default()
        };
        let huge = ResidentRuns::new(std::iter::once(0x20_0000..0x40_0000));
        let found = account_heaps(found, &ResidentRuns::default(), &huge);
        assert_eq!((found.huge_pages, found.untouched), (0x1f_fff0, 0));
        assert_eq!(found.resident(), 0);
    }
}
