//! The ledger: the resident memory of a process by part, reconciled between the kernel's counts and the allocators' own
//! statistics.
//!
//! RSS = file pages + shared pages + anonymous pages. The anonymous pages are live heap, fragmentation, dirty pages,
//! the allocator's metadata, and memory outside of all allocators: stacks, raw `mmap`s, static data. The sources are
//! cheap: `/proc/thread-self/status`, the allocators' totals, three cgroup files. [`Smaps`](memprof_messages::Smaps) is
//! read only on request. An allocator counts a page before the program touches it, so the rows are bounds. For exact
//! rows, `memprof ledger` walks the heaps from outside.

use memprof_messages::{
    AllocatorHeap, AllocatorKind, Cgroup, HeapTotals, HeapUsage, Ledger, LedgerPart, LedgerRow,
    SampledObjects, release_version,
};

use super::findings::{
    EarlierLedger, HeapCount, dirty_pages_finding, fragmentation_finding, growth_finding,
    non_allocator_memory_finding, page_cache_finding, sampling_finding, shared_memory_finding,
    thread_caches_finding, uncertain_residency_finding,
};
use super::resident_memory::ResidentMemory;

/// Bytes by which the allocators' counts exceed the resident memory. The process has not touched this memory yet; most
/// of it is early metadata. A sampled object has pages of its own; those that the object does not reach are left out.
/// `anonymous` is the resident anonymous memory in bytes.
pub(crate) fn untouched_bytes(anonymous: u64, allocators: &[AllocatorHeap]) -> u64 {
    let heap = detailed_total(allocators);
    let counted = heap.resident.max(heap.active.saturating_add(heap.metadata));
    // Only the first bytes of a sampled object's pages are touched: those of the object.
    let sampled = sampled_total(allocators);
    let unreached_bytes = sampled.active.saturating_sub(sampled.pages);
    counted
        .saturating_sub(unreached_bytes)
        .saturating_sub(anonymous)
}

/// Sum of the heap totals, in bytes, over all allocators that distinguish live from free memory.
fn detailed_total(allocators: &[AllocatorHeap]) -> HeapTotals {
    let totals = allocators.iter().filter_map(|each| match each.totals {
        Some(HeapUsage::Detailed(totals)) => Some(totals),
        Some(HeapUsage::CommittedOnly { .. }) | None => None,
    });
    totals.fold(HeapTotals::default(), HeapTotals::sum)
}

/// Live bytes of the program, over all allocators that report them. A sampled object counts with its own size, without
/// the pages that sampling adds.
pub(crate) fn live_bytes(allocators: &[AllocatorHeap]) -> u64 {
    let (heap, sampled) = (detailed_total(allocators), sampled_total(allocators));
    let unsampled = heap.allocated.saturating_sub(sampled.allocated);
    unsampled.saturating_add(sampled.bytes)
}

/// Sum of the sampled objects over all allocators that report them.
fn sampled_total(allocators: &[AllocatorHeap]) -> SampledObjects {
    let each = allocators.iter().filter_map(|each| each.sampled);
    each.fold(SampledObjects::default(), SampledObjects::sum)
}

/// Sum of the committed bytes of the allocators that report only these.
fn committed_only_total(allocators: &[AllocatorHeap]) -> u64 {
    let committed = allocators.iter().filter_map(|each| match each.totals {
        Some(HeapUsage::CommittedOnly { committed }) => Some(committed),
        Some(HeapUsage::Detailed(_)) | None => None,
    });
    committed.fold(0, u64::saturating_add)
}

/// Names of the allocators that keep no count, such as `jemalloc 5.3.1`.
fn uncounted_allocator_names(allocators: &[AllocatorHeap]) -> Vec<String> {
    let uncounted = allocators.iter().filter(|each| each.totals.is_none());
    let names = uncounted.map(|each| format!("{} {}", each.kind, release_version(&each.version)));
    names.collect()
}

/// Divides the resident memory into parts, and derives findings about them. `untouched` is the largest result of
/// [`untouched_bytes`] so far. `earlier` is the live heap of an earlier ledger; without it, growth is not checked.
/// Without `cgroup`, there are no findings about its limit. The heap of an allocator without statistics counts as
/// memory outside of all allocators. If the allocators count over a tenth more live memory than is resident, all
/// anonymous memory counts as one undivided heap.
pub(crate) fn build_ledger(
    resident: ResidentMemory,
    allocators: Vec<AllocatorHeap>,
    untouched: u64,
    earlier: Option<EarlierLedger>,
    cgroup: Option<Cgroup>,
) -> Ledger {
    let heap = detailed_total(&allocators);
    let sampled = sampled_total(&allocators);
    // Totals without the sampled objects and their pages.
    let unsampled = HeapTotals {
        allocated: heap.allocated.saturating_sub(sampled.allocated),
        active: heap.active.saturating_sub(sampled.active),
        ..heap
    };
    let live_bytes = live_bytes(&allocators);
    // If the allocators count more live memory than is resident, nothing says which of it is resident. A tenth is
    // tolerated.
    let can_split_residency = live_bytes <= resident.anonymous + resident.anonymous / 10;
    let mut remaining = resident.anonymous;
    // The allocators' parts may exceed the resident memory, because they include untouched pages. So parts that were
    // certainly touched are subtracted first.
    let mut subtract = |bytes: u64| {
        let part = bytes.min(remaining);
        remaining -= part;
        part
    };
    let divided = match can_split_residency {
        true => {
            let thread_caches = heap
                .thread_caches
                .min(unsampled.active.saturating_sub(unsampled.allocated));
            let part = [
                live_bytes,
                thread_caches,
                sampled.pages.saturating_sub(sampled.bytes),
                unsampled
                    .active
                    .saturating_sub(unsampled.allocated)
                    .saturating_sub(thread_caches),
                heap.resident
                    .saturating_sub(heap.active)
                    .saturating_sub(heap.metadata)
                    .saturating_add(heap.lazily_free),
                heap.metadata.saturating_sub(untouched),
                // An upper bound, because committed pages may be untouched.
                committed_only_total(&allocators),
            ];
            part.map(&mut subtract)
        }
        // All anonymous memory counts as undivided heap.
        false => [0, 0, 0, 0, 0, 0, subtract(u64::MAX)],
    };
    let [
        live_heap,
        thread_caches,
        sampling,
        fragmentation,
        dirty,
        metadata,
        undivided,
    ] = divided;
    let rows = [
        (LedgerPart::LiveHeap, live_heap),
        (LedgerPart::ThreadCaches, thread_caches),
        (LedgerPart::Sampling, sampling),
        (LedgerPart::Fragmentation, fragmentation),
        (LedgerPart::Dirty, dirty),
        (LedgerPart::Metadata, metadata),
        (LedgerPart::UndividedHeap, undivided),
        (LedgerPart::NotTheAllocator, remaining),
        (LedgerPart::File, resident.file),
        (LedgerPart::Shared, resident.shared),
    ];
    let rows = rows.map(|(part, bytes)| LedgerRow {
        name: part.into(),
        bytes,
    });
    let rss_bytes = resident.total_bytes();
    let kinds = || allocators.iter().filter(|each| each.totals.is_some());
    let has = |kind: AllocatorKind| kinds().any(|each| each.kind == kind);
    let verdicts = [
        growth_finding(live_bytes, earlier),
        uncertain_residency_finding(
            &HeapCount {
                live: live_bytes,
                undivided: committed_only_total(&allocators),
                can_split_residency,
                has_glibc: has(AllocatorKind::Glibc),
            },
            &resident,
        ),
        sampling_finding(&sampled, sampling, rss_bytes),
        fragmentation_finding(&unsampled, fragmentation, has),
        thread_caches_finding(thread_caches, rss_bytes),
        dirty_pages_finding(dirty, rss_bytes),
        non_allocator_memory_finding(
            remaining,
            rss_bytes,
            &uncounted_allocator_names(&allocators),
        ),
        page_cache_finding(cgroup, rss_bytes),
        shared_memory_finding(cgroup),
    ];
    Ledger {
        rss_bytes,
        rows: rows.into(),
        allocators,
        cgroup,
        verdicts: verdicts.into_iter().flatten().collect(),
        smaps: None,
        walk: None,
        parts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memprof_messages::{LedgerFinding, LedgerFindingKind};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn heap_of(kind: AllocatorKind, totals: HeapUsage) -> Vec<AllocatorHeap> {
        vec![AllocatorHeap {
            kind: kind.into(),
            version: "1".to_owned(),
            owns_malloc: true,
            totals: Some(totals),
            sampled: None,
            error: None,
        }]
    }

    fn heap(allocated: u64, active: u64, metadata: u64, resident: u64) -> Vec<AllocatorHeap> {
        let figures = HeapTotals {
            allocated,
            active,
            metadata,
            resident,
            ..HeapTotals::default()
        };
        heap_of(AllocatorKind::Jemalloc, HeapUsage::Detailed(figures))
    }

    fn kinds(ledger: &Ledger) -> Vec<&str> {
        ledger
            .verdicts
            .iter()
            .map(|verdict| verdict.kind.as_str())
            .collect()
    }

    #[test]
    fn heap_of_allocator_that_keeps_no_count_is_named() {
        let resident = ResidentMemory {
            anonymous: 100 * MIB,
            ..ResidentMemory::default()
        };
        let check = |heaps: Vec<AllocatorHeap>, why: &str, remedy: &str| {
            let ledger = build_ledger(resident, heaps, 0, None, None);
            let mut verdicts = ledger.verdicts.iter();
            let outside = LedgerFindingKind::NotTheAllocator;
            let verdict = verdicts.find(|each| each.kind == outside).unwrap();
            assert!(verdict.why.contains(why), "{verdict:?}");
            assert!(verdict.remedy.contains(remedy), "{verdict:?}");
        };
        let counted = heap(10 * MIB, 10 * MIB, 0, 10 * MIB);
        check(
            counted.clone(),
            "outside of every allocator found",
            "a heap profile will not show it",
        );
        let uncounted = AllocatorHeap {
            totals: None,
            version: "5.3.1-0-g81034ce1".to_owned(),
            ..counted[0].clone()
        };
        check(
            [counted, vec![uncounted]].concat(),
            "jemalloc 5.3.1 keeps no count, and may hold it",
            "memprof record",
        );
    }

    #[test]
    fn rows_sum_to_rss() {
        let check = |anonymous: u64, heap: Vec<AllocatorHeap>, expected: [u64; 8]| {
            let resident = ResidentMemory {
                anonymous,
                file: 7,
                shared: 3,
                ..ResidentMemory::default()
            };
            let ledger = build_ledger(resident, heap, 0, None, None);
            let rows: Vec<_> = ledger.rows.iter().map(|row| row.bytes).collect();
            assert_eq!(rows[..8], expected);
            assert_eq!(rows.iter().sum::<u64>(), ledger.rss_bytes);
        };
        check(100, heap(50, 60, 5, 80), [50, 0, 0, 10, 15, 5, 0, 20]);
        check(100, Vec::new(), [0, 0, 0, 0, 0, 0, 0, 100]);
        // Metadata beyond the resident memory was never touched.
        check(70, heap(50, 60, 25, 90), [50, 0, 0, 10, 5, 5, 0, 0]);
        check(48, heap(50, 60, 5, 80), [48, 0, 0, 0, 0, 0, 0, 0]);
        // Which part of the heap is resident is unknown.
        check(40, heap(50, 60, 5, 80), [0, 0, 0, 0, 0, 0, 40, 0]);
        check(0, heap(0, 0, 0, 0), [0; 8]);
        let committed = |bytes| {
            heap_of(
                AllocatorKind::Mimalloc,
                HeapUsage::CommittedOnly { committed: bytes },
            )
        };
        check(100, committed(80), [0, 0, 0, 0, 0, 0, 80, 20]);
        check(100, committed(u64::MAX), [0, 0, 0, 0, 0, 0, 100, 0]);
        let both = [heap(50, 60, 5, 80), committed(10)].concat();
        check(100, both, [50, 0, 0, 10, 15, 5, 10, 10]);
        // An allocator with absurd statistics.
        let all = u64::MAX;
        check(
            100,
            [heap(all, all, all, all), heap(all, all, all, all)].concat(),
            [0, 0, 0, 0, 0, 0, 100, 0],
        );
    }

    #[test]
    fn cost_of_sampling_is_no_fragmentation() {
        let resident = |anonymous| ResidentMemory {
            anonymous,
            ..ResidentMemory::default()
        };
        // 20,480 objects of the program are live, of 1 KiB each; a quarter was sampled.
        let sampled = |active_each: u64, allocated_each: u64| SampledObjects {
            objects: 5120,
            bytes: 5 * MIB,
            active: 5120 * active_each,
            allocated: 5120 * allocated_each,
            pages: 20 * MIB,
        };
        let check = |figures: Vec<AllocatorHeap>, sampled: SampledObjects| {
            let heap = vec![AllocatorHeap {
                sampled: Some(sampled),
                ..figures[0].clone()
            }];
            let ledger = build_ledger(resident(40 * MIB), heap, 0, None, None);
            let rows: Vec<_> = ledger.rows[..4].iter().map(|row| row.bytes / MIB).collect();
            assert_eq!(rows, [20, 0, 15, 1]);
            let verdicts = kinds(&ledger);
            assert!(!verdicts.contains(&"fragmentation"), "{verdicts:?}");
        };
        let beside = vec![AllocatorHeap {
            sampled: Some(sampled(20480, 16384)),
            ..heap(95 * MIB, 116 * MIB, 4 * MIB, 120 * MIB)[0].clone()
        }];
        // 80 MiB of pages beside the objects; 40 MiB of the rest are counted.
        assert_eq!(untouched_bytes(40 * MIB, &beside), 0);
        assert_eq!(untouched_bytes(30 * MIB, &beside), 10 * MIB);
        check(heap(15 * MIB, 56 * MIB, 0, 60 * MIB), sampled(8192, 0));
        check(
            heap(95 * MIB, 116 * MIB, 0, 116 * MIB),
            sampled(20480, 16384),
        );

        let large = vec![AllocatorHeap {
            sampled: Some(SampledObjects {
                pages: 40 * MIB,
                ..sampled(8192, 0)
            }),
            ..heap(15 * MIB, 56 * MIB, 0, 60 * MIB)[0].clone()
        }];
        let ledger = build_ledger(resident(60 * MIB), large, 0, None, None);
        assert_eq!(kinds(&ledger), ["sampling"]);
        let why = &ledger.verdicts[0].why;
        assert!(why.contains("about 5120 sampled small objects"), "{why}");
    }

    #[test]
    fn untouched_metadata_does_not_change_difference() {
        let heap = heap(50, 60, 25, 90);
        let resident = |anonymous| ResidentMemory {
            anonymous,
            ..ResidentMemory::default()
        };
        let untouched = untouched_bytes(70, &heap);
        assert_eq!(untouched, 20);
        let outside = |anonymous| {
            let ledger = build_ledger(resident(anonymous), heap.clone(), untouched, None, None);
            let rows: Vec<_> = ledger.rows.iter().map(|row| row.bytes).collect();
            (rows[5], rows[7])
        };
        assert_eq!(outside(70), (5, 0));
        assert_eq!(outside(170), (5, 100));
    }

    #[test]
    fn findings_appear_above_their_thresholds() {
        let check = |heap: Vec<AllocatorHeap>, anonymous: u64, expected: &[&str]| {
            let ledger = build_ledger(
                ResidentMemory {
                    anonymous,
                    ..ResidentMemory::default()
                },
                heap,
                0,
                None,
                None,
            );
            assert_eq!(kinds(&ledger), expected);
        };
        check(heap(100 * MIB, 125 * MIB, 0, 125 * MIB), 125 * MIB, &[]);
        check(
            heap(100 * MIB, 150 * MIB, 0, 150 * MIB),
            150 * MIB,
            &["fragmentation"],
        );
        check(
            heap(100 * MIB, 100 * MIB, 0, 150 * MIB),
            150 * MIB,
            &["dirty"],
        );
        check(
            heap(100 * MIB, 100 * MIB, 0, 100 * MIB),
            150 * MIB,
            &["not_the_allocator"],
        );
        check(heap(MIB, 3 * MIB, 0, 9 * MIB), 15 * MIB, &[]);
        check(heap(10 * MIB, 90 * MIB, 0, 90 * MIB), 20 * MIB, &[]);
    }

    /// 100 MiB of 100 MiB are live according to the allocator.
    #[test]
    fn live_heap_that_may_be_untouched_is_uncertain() {
        let check = |live: u64, kind: AllocatorKind, nonresident: u64, threads: u64, part: &str| {
            let figures = HeapTotals {
                allocated: live * MIB,
                active: live * MIB,
                resident: live * MIB,
                ..HeapTotals::default()
            };
            let resident = ResidentMemory {
                anonymous: 100 * MIB,
                nonresident: nonresident * MIB,
                thread_count: threads,
                ..ResidentMemory::default()
            };
            let heap = heap_of(kind, HeapUsage::Detailed(figures));
            let verdicts = build_ledger(resident, heap, 0, None, None).verdicts;
            let is_uncertain =
                |finding: &&LedgerFinding| finding.kind == LedgerFindingKind::Uncertain;
            let why = verdicts
                .iter()
                .find(is_uncertain)
                .map_or("", |finding| &finding.why);
            assert!(
                why.contains(part) && part.is_empty() == why.is_empty(),
                "{why}"
            );
        };
        check(100, AllocatorKind::Jemalloc, 5, 200, "");
        check(
            100,
            AllocatorKind::Jemalloc,
            40,
            200,
            "up to 40.0 MiB of live_heap",
        );
        check(
            100,
            AllocatorKind::Jemalloc,
            4000,
            1,
            "up to 100.0 MiB of live_heap",
        );
        check(100, AllocatorKind::Glibc, 0, 1, "");
        check(
            100,
            AllocatorKind::Glibc,
            0,
            200,
            "the caches of 200 threads",
        );
        let all = "count 1.0 GiB as live, but only 100.0 MiB";
        check(1024, AllocatorKind::Tcmalloc, 1000, 1, all);
        let resident = ResidentMemory {
            anonymous: 100 * MIB,
            nonresident: 900 * MIB,
            ..ResidentMemory::default()
        };
        let committed = HeapUsage::CommittedOnly { committed: 1 << 30 };
        let heap = heap_of(AllocatorKind::Mimalloc, committed);
        let ledger = build_ledger(resident, heap, 0, None, None);
        let why = &ledger.verdicts[0].why;
        assert!(
            why.starts_with("up to 100.0 MiB of undivided_heap"),
            "{why}"
        );
    }

    #[test]
    fn thread_caches_and_lazily_free_pages_are_rows() {
        let figures = HeapTotals {
            allocated: 100 * MIB,
            active: 150 * MIB,
            resident: 150 * MIB,
            thread_caches: 40 * MIB,
            lazily_free: 30 * MIB,
            ..HeapTotals::default()
        };
        let resident = ResidentMemory {
            anonymous: 190 * MIB,
            ..ResidentMemory::default()
        };
        let heap = heap_of(AllocatorKind::Tcmalloc, HeapUsage::Detailed(figures));
        let ledger = build_ledger(resident, heap, 0, None, None);
        let rows: Vec<_> = ledger.rows.iter().map(|row| row.bytes / MIB).collect();
        assert_eq!(rows, [100, 40, 0, 10, 30, 0, 0, 10, 0, 0]);
        assert_eq!(kinds(&ledger), ["thread_caches", "dirty"]);
    }

    #[test]
    fn shared_memory_of_cgroup_is_not_page_cache() {
        let check = |file: Option<u64>, shared: Option<u64>, expected: &[&str]| {
            let cgroup = Cgroup {
                usage_bytes: 190 * MIB,
                limit_bytes: Some(200 * MIB),
                file_cache_bytes: file.map(|file| file * MIB),
                shared_bytes: shared.map(|shared| shared * MIB),
            };
            let resident = ResidentMemory::default();
            let ledger = build_ledger(resident, Vec::new(), 0, None, Some(cgroup));
            assert_eq!(kinds(&ledger), expected);
        };
        check(None, None, &["page_cache"]);
        check(Some(180), Some(5), &["page_cache"]);
        check(Some(5), Some(180), &["shared_memory"]);
        check(Some(90), Some(90), &["page_cache", "shared_memory"]);
        check(Some(0), Some(0), &[]);
    }

    #[test]
    fn fragmentation_remedy_is_of_allocator() {
        let check = |kind: AllocatorKind, part: &str| {
            let figures = HeapTotals {
                allocated: 100 * MIB,
                active: 150 * MIB,
                resident: 150 * MIB,
                ..HeapTotals::default()
            };
            let resident = ResidentMemory {
                anonymous: 150 * MIB,
                ..ResidentMemory::default()
            };
            let heap = heap_of(kind, HeapUsage::Detailed(figures));
            let ledger = build_ledger(resident, heap, 0, None, None);
            assert!(ledger.verdicts[0].remedy.contains(part), "{ledger:?}");
        };
        check(AllocatorKind::Jemalloc, "ledger --pinned");
        check(AllocatorKind::Glibc, "`purge` gives back the whole pages");
        check(AllocatorKind::Tcmalloc, "whole free spans only");
    }

    #[test]
    fn growth_finding_names_elapsed_time() {
        let check = |allocated: u64, expected: &[&str]| {
            let earlier = EarlierLedger {
                allocated: allocated * MIB,
                ago: Duration::from_secs(90),
            };
            let resident = ResidentMemory {
                anonymous: 200 * MIB,
                ..ResidentMemory::default()
            };
            let heap = heap(200 * MIB, 200 * MIB, 0, 200 * MIB);
            let ledger = build_ledger(resident, heap, 0, Some(earlier), None);
            assert_eq!(kinds(&ledger), expected);
            for verdict in ledger.verdicts {
                assert!(
                    verdict.why.contains(" in 1m 30s, above 10 %"),
                    "{verdict:?}"
                );
            }
        };
        check(100, &["growth"]);
        check(190, &[]);
        check(300, &[]);
    }

    #[test]
    fn fragmentation_remedy_excludes_purging() {
        let resident = ResidentMemory {
            anonymous: 150 * MIB,
            ..ResidentMemory::default()
        };
        let ledger = build_ledger(
            resident,
            heap(100 * MIB, 150 * MIB, 0, 150 * MIB),
            0,
            None,
            None,
        );
        assert!(
            ledger.verdicts[0]
                .remedy
                .starts_with("purging will not help")
        );
        assert!(ledger.verdicts[0].why.contains("is 1.50, above 1.3"));
    }
}
