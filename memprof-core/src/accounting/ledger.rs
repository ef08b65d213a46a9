//! The ledger: the resident memory of a process by part, reconciled between the kernel's counts and the
//! allocators' own statistics.
//!
//! RSS = file pages + shared pages + anonymous pages. The anonymous pages are live heap, fragmentation, dirty
//! pages, the allocator's metadata, and memory outside of every allocator: stacks, raw `mmap`s, static data.
//! Uses only cheap sources: `/proc/thread-self/status`, the allocators' totals, two cgroup files.
//! [`Smaps`](memprof_messages::Smaps) is read only on request.

use memprof_messages::{
    AllocatorHeap, Cgroup, HeapTotals, HeapUsage, Ledger, LedgerFinding, LedgerFindingKind,
    LedgerPart, LedgerRow, SampledObjects,
};
use std::time::Duration;

/// Ratio of active to allocated bytes above which fragmentation is reported.
const FRAGMENTED_RATIO: f64 = 1.3;
/// Share of RSS above which dirty pages and memory outside of the heap are reported.
const NOTABLE_SHARE: f64 = 0.10;
/// Least size of a reported part, in bytes.
const NOTABLE_BYTES: u64 = 16 << 20;

/// Resident memory of a process as the kernel counts it (`proc_pid_status(5)`), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResidentMemory {
    pub anonymous: u64,
    pub file: u64,
    pub shared: u64,
}

impl ResidentMemory {
    /// Parses the text of /proc/PID/status. `None` if a field is missing.
    pub(crate) fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| -> Option<u64> {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(Self {
            anonymous: field("RssAnon:")?,
            file: field("RssFile:")?,
            shared: field("RssShmem:")?,
        })
    }

    /// Resident memory in bytes (RSS).
    fn total(&self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

/// Bytes by which the allocators' parts exceed the resident memory: memory that they count as their own and
/// the process has not touched yet, mostly metadata laid out early.
pub(crate) fn untouched(anonymous: u64, allocators: &[AllocatorHeap]) -> u64 {
    let heap = detailed_total(allocators);
    let counted = heap.resident.max(heap.active.saturating_add(heap.metadata));
    // Of the pages of a sampled object, only the object's own are touched.
    let sampled = sampled_total(allocators);
    let beside_samples = sampled.active.saturating_sub(sampled.pages);
    counted
        .saturating_sub(beside_samples)
        .saturating_sub(anonymous)
}

/// Sum over all allocators that distinguish live from free memory.
fn detailed_total(allocators: &[AllocatorHeap]) -> HeapTotals {
    let totals = allocators.iter().filter_map(|each| match each.totals {
        Some(HeapUsage::Detailed(totals)) => Some(totals),
        Some(HeapUsage::CommittedOnly { .. }) | None => None,
    });
    totals.fold(HeapTotals::default(), HeapTotals::sum)
}

/// Live bytes of the program in allocators that report them, without the cost of sampling.
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

/// Sum of the committed bytes over all allocators that report nothing else.
fn opaque_total(allocators: &[AllocatorHeap]) -> u64 {
    let committed = allocators.iter().filter_map(|each| match each.totals {
        Some(HeapUsage::CommittedOnly { committed }) => Some(committed),
        Some(HeapUsage::Detailed(_)) | None => None,
    });
    committed.fold(0, u64::saturating_add)
}

/// Divides the resident memory into parts and derives findings. `earlier` is the live heap of an earlier ledger,
/// with which growth is found. The heap of an allocator without statistics counts as outside of every allocator.
/// `untouched` is the number of metadata bytes that are known to be [`untouched`].
pub(crate) fn reconcile(
    resident: ResidentMemory,
    allocators: Vec<AllocatorHeap>,
    untouched: u64,
    earlier: Option<EarlierLedger>,
    cgroup: Option<Cgroup>,
) -> Ledger {
    let heap = detailed_total(&allocators);
    let sampled = sampled_total(&allocators);
    // Totals without the samples: the program's other objects, and their pages.
    let unsampled = HeapTotals {
        allocated: heap.allocated.saturating_sub(sampled.allocated),
        active: heap.active.saturating_sub(sampled.active),
        ..heap
    };
    let live_bytes = live_bytes(&allocators);
    let mut remaining = resident.anonymous;
    // An allocator counts a page before the process has touched it, so its parts may exceed what is resident.
    // Parts that were certainly touched are subtracted first.
    let mut subtract = |bytes: u64| {
        let part = bytes.min(remaining);
        remaining -= part;
        part
    };
    let live_heap = subtract(live_bytes);
    let sampling = subtract(sampled.pages.saturating_sub(sampled.bytes));
    let fragmentation = subtract(unsampled.active.saturating_sub(unsampled.allocated));
    let dirty = subtract(
        heap.resident
            .saturating_sub(heap.active)
            .saturating_sub(heap.metadata),
    );
    let metadata = subtract(heap.metadata.saturating_sub(untouched));
    // Committed pages need not have been touched, so this is an upper bound.
    let opaque = subtract(opaque_total(&allocators));
    let rows = [
        (LedgerPart::LiveHeap, live_heap),
        (LedgerPart::Sampling, sampling),
        (LedgerPart::Fragmentation, fragmentation),
        (LedgerPart::Dirty, dirty),
        (LedgerPart::Metadata, metadata),
        (LedgerPart::UndividedHeap, opaque),
        (LedgerPart::NotTheAllocator, remaining),
        (LedgerPart::File, resident.file),
        (LedgerPart::Shared, resident.shared),
    ];
    let rows = rows.map(|(part, bytes)| LedgerRow {
        name: part.into(),
        bytes,
    });
    let rss_bytes = resident.total();
    let verdicts = [
        growth_finding(live_bytes, earlier),
        sampling_finding(&sampled, sampling, rss_bytes),
        fragmentation_finding(&unsampled, fragmentation),
        dirty_finding(dirty, rss_bytes),
        outside_finding(remaining, rss_bytes),
        page_cache_finding(cgroup, rss_bytes),
    ];
    Ledger {
        rss_bytes,
        rows: rows.into(),
        allocators,
        cgroup,
        verdicts: verdicts.into_iter().flatten().collect(),
        smaps: None,
    }
}

/// Live bytes at an earlier time, and how long ago that was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlierLedger {
    pub allocated: u64,
    pub ago: Duration,
}

/// Finding if the live heap grew notably since the earlier ledger.
fn growth_finding(live_bytes: u64, earlier: Option<EarlierLedger>) -> Option<LedgerFinding> {
    let EarlierLedger { allocated, ago } = earlier?;
    let grown = live_bytes.saturating_sub(allocated);
    let share = grown as f64 / allocated.max(1) as f64;
    (share > NOTABLE_SHARE && grown >= NOTABLE_BYTES).then(|| LedgerFinding {
        kind: LedgerFindingKind::Growth.into(),
        why: format!(
            "the live heap grew by {} ({grown} bytes) in {}, above {}",
            percent(share),
            humantime::format_duration(Duration::from_secs(ago.as_secs())),
            percent(NOTABLE_SHARE)
        ),
        remedy: "`activate`, then three dumps with the load between them: `memprof leaks` names \
                 what grows in each"
            .to_owned(),
    })
}

/// Finding if sampling costs a notable share of RSS. `bytes` is the ledger's row.
fn sampling_finding(sampled: &SampledObjects, bytes: u64, rss: u64) -> Option<LedgerFinding> {
    let share = bytes as f64 / rss.max(1) as f64;
    (share > NOTABLE_SHARE && bytes >= NOTABLE_BYTES).then(|| LedgerFinding {
        kind: LedgerFindingKind::Sampling.into(),
        why: format!(
            "{} of RSS are what sampling costs, above {}: each of about {} sampled small objects \
             has a page of its own",
            percent(share),
            percent(NOTABLE_SHARE),
            sampled.objects
        ),
        remedy: "end the activation (`deactivate`) or sample more coarsely (`reset \
                 sample_interval=512KiB`); the pages go as these objects are freed"
            .to_owned(),
    })
}

/// Finding if the heap is fragmented. `lost` is the ledger's row: active pages that were never touched are
/// not lost.
fn fragmentation_finding(heap: &HeapTotals, lost: u64) -> Option<LedgerFinding> {
    let ratio = heap.active as f64 / heap.allocated.max(1) as f64;
    (ratio > FRAGMENTED_RATIO && lost >= NOTABLE_BYTES).then(|| LedgerFinding {
        kind: LedgerFindingKind::Fragmentation.into(),
        why: format!("active / allocated is {ratio:.2}, above {FRAGMENTED_RATIO}: {lost} bytes are lost in partly filled pages"),
        remedy: "purging will not help: these pages hold live objects beside the free ones; \
                 look for long-lived objects allocated among short-lived ones (`memprof ledger --pinned`)"
            .to_owned(),
    })
}

/// Finding if dirty pages are a notable share of RSS.
fn dirty_finding(dirty: u64, rss: u64) -> Option<LedgerFinding> {
    let share = dirty as f64 / rss.max(1) as f64;
    (share > NOTABLE_SHARE && dirty >= NOTABLE_BYTES).then(|| LedgerFinding {
        kind: LedgerFindingKind::Dirty.into(),
        why: format!(
            "{} of RSS are free pages that the allocator keeps, above {}",
            percent(share),
            percent(NOTABLE_SHARE)
        ),
        remedy: "`purge` gives them back now; dirty_decay_ms and background_thread give them back \
                 by themselves"
            .to_owned(),
    })
}

/// Finding if memory outside of every allocator is a notable share of RSS.
fn outside_finding(bytes: u64, rss: u64) -> Option<LedgerFinding> {
    let share = bytes as f64 / rss.max(1) as f64;
    (share > NOTABLE_SHARE && bytes >= NOTABLE_BYTES).then(|| LedgerFinding {
        kind: LedgerFindingKind::NotTheAllocator.into(),
        why: format!(
            "{} of RSS are outside of every allocator found, above {}",
            percent(share),
            percent(NOTABLE_SHARE)
        ),
        remedy: "a heap profile will not show it: look at thread stacks, mmap calls and other \
                 allocators (pmap -x PID)"
            .to_owned(),
    })
}

/// Finding if a notable share of the cgroup's limit is not this process's RSS.
fn page_cache_finding(cgroup: Option<Cgroup>, rss: u64) -> Option<LedgerFinding> {
    let Cgroup {
        usage_bytes,
        limit_bytes,
    } = cgroup?;
    let limit = limit_bytes?;
    let cache = usage_bytes.saturating_sub(rss);
    let share = cache as f64 / limit.max(1) as f64;
    (share > NOTABLE_SHARE && cache >= NOTABLE_BYTES).then(|| LedgerFinding {
        kind: LedgerFindingKind::PageCache.into(),
        why: format!(
            "{} of the cgroup's limit are not this process's RSS, above {}",
            percent(share),
            percent(NOTABLE_SHARE)
        ),
        remedy: "the kernel frees page cache under pressure, but not the memory of other processes of the cgroup"
            .to_owned(),
    })
}

/// Formats a share as a whole percentage: `12 %`.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use memprof_messages::AllocatorKind;

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
            mapped: 0,
            retained: 0,
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
    fn rows_sum_to_rss() {
        let check = |anonymous: u64, heap: Vec<AllocatorHeap>, expected: [u64; 7]| {
            let resident = ResidentMemory {
                anonymous,
                file: 7,
                shared: 3,
            };
            let ledger = reconcile(resident, heap, 0, None, None);
            let rows: Vec<_> = ledger.rows.iter().map(|row| row.bytes).collect();
            assert_eq!(rows[..7], expected);
            assert_eq!(rows.iter().sum::<u64>(), ledger.rss_bytes);
        };
        check(100, heap(50, 60, 5, 80), [50, 0, 10, 15, 5, 0, 20]);
        check(100, Vec::new(), [0, 0, 0, 0, 0, 0, 100]);
        // Metadata beyond the resident memory was never touched.
        check(70, heap(50, 60, 25, 90), [50, 0, 10, 5, 5, 0, 0]);
        check(40, heap(50, 60, 5, 80), [40, 0, 0, 0, 0, 0, 0]);
        check(0, heap(0, 0, 0, 0), [0; 7]);
        let committed = |bytes| {
            heap_of(
                AllocatorKind::Mimalloc,
                HeapUsage::CommittedOnly { committed: bytes },
            )
        };
        check(100, committed(80), [0, 0, 0, 0, 0, 80, 20]);
        check(100, committed(u64::MAX), [0, 0, 0, 0, 0, 100, 0]);
        let both = [heap(50, 60, 5, 80), committed(10)].concat();
        check(100, both, [50, 0, 10, 15, 5, 10, 10]);
        // An allocator with absurd statistics.
        let all = u64::MAX;
        check(
            100,
            [heap(all, all, all, all), heap(all, all, all, all)].concat(),
            [100, 0, 0, 0, 0, 0, 0],
        );
    }

    #[test]
    fn cost_of_sampling_is_no_fragmentation() {
        let resident = |anonymous| ResidentMemory {
            anonymous,
            file: 0,
            shared: 0,
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
            let ledger = reconcile(resident(40 * MIB), heap, 0, None, None);
            let rows: Vec<_> = ledger.rows[..3].iter().map(|row| row.bytes / MIB).collect();
            assert_eq!(rows, [20, 15, 1]);
            let verdicts = kinds(&ledger);
            assert!(!verdicts.contains(&"fragmentation"), "{verdicts:?}");
        };
        let beside = vec![AllocatorHeap {
            sampled: Some(sampled(20480, 16384)),
            ..heap(95 * MIB, 116 * MIB, 4 * MIB, 120 * MIB)[0].clone()
        }];
        // 80 MiB of pages beside the objects; 40 MiB of the rest are counted.
        assert_eq!(untouched(40 * MIB, &beside), 0);
        assert_eq!(untouched(30 * MIB, &beside), 10 * MIB);
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
        let ledger = reconcile(resident(60 * MIB), large, 0, None, None);
        assert_eq!(kinds(&ledger), ["sampling"]);
        let why = &ledger.verdicts[0].why;
        assert!(why.contains("about 5120 sampled small objects"), "{why}");
    }

    #[test]
    fn untouched_metadata_does_not_change_difference() {
        let heap = heap(50, 60, 25, 90);
        let resident = |anonymous| ResidentMemory {
            anonymous,
            file: 0,
            shared: 0,
        };
        let untouched = untouched(70, &heap);
        assert_eq!(untouched, 20);
        let outside = |anonymous| {
            let ledger = reconcile(resident(anonymous), heap.clone(), untouched, None, None);
            let rows: Vec<_> = ledger.rows.iter().map(|row| row.bytes).collect();
            (rows[4], rows[6])
        };
        assert_eq!(outside(70), (5, 0));
        assert_eq!(outside(170), (5, 100));
    }

    #[test]
    fn findings_appear_above_their_thresholds() {
        let check = |heap: Vec<AllocatorHeap>, anonymous: u64, expected: &[&str]| {
            let ledger = reconcile(
                ResidentMemory {
                    anonymous,
                    file: 0,
                    shared: 0,
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

    #[test]
    fn growth_finding_names_elapsed_time() {
        let check = |allocated: u64, expected: &[&str]| {
            let earlier = EarlierLedger {
                allocated: allocated * MIB,
                ago: Duration::from_secs(90),
            };
            let resident = ResidentMemory {
                anonymous: 200 * MIB,
                file: 0,
                shared: 0,
            };
            let heap = heap(200 * MIB, 200 * MIB, 0, 200 * MIB);
            let ledger = reconcile(resident, heap, 0, Some(earlier), None);
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
            file: 0,
            shared: 0,
        };
        let ledger = reconcile(
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

    #[test]
    fn incomplete_status_is_refused() {
        let status =
            "Name:\tx\nRssAnon:\t     100 kB\nRssFile:\t       2 kB\nRssShmem:\t       0 kB\n";
        let expected = ResidentMemory {
            anonymous: 102_400,
            file: 2048,
            shared: 0,
        };
        assert_eq!(ResidentMemory::parse(status), Some(expected));
        assert_eq!(ResidentMemory::parse("RssAnon: x kB"), None);
        assert_eq!(ResidentMemory::parse(""), None);
    }
}
