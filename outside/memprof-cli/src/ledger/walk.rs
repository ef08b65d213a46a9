//! Makes a ledger's rows exact by a walk of the heaps from outside the process.

use std::path::Path;

use memprof_leaks::HeapResidency;
use memprof_messages::{
    AllocatorHeap, HeapUsage, HeapWalk, Ledger, LedgerFinding, LedgerFindingKind, LedgerPart,
    LedgerRow, size_text,
};
use memprof_ptrace::read_proc_text;

/// Largest error of the kernel's count of a new process's memory, in bytes: up to 256 pages are not counted yet, on
/// machines with the most processors (`lib/percpu_counter.c`).
const COUNT_ERROR: u64 = 1 << 20;

/// Resident memory of a process (`proc_pid_status(5)`), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResidentMemory {
    pub(super) anonymous: u64,
    pub(super) file: u64,
    pub(super) shared: u64,
}

impl ResidentMemory {
    /// Reads the resident memory of a process. `None` if its status cannot be read or has none, as after its end.
    pub(super) fn read(pid: u32) -> Option<Self> {
        let path = Path::new("/proc").join(pid.to_string()).join("status");
        Self::parse(&read_proc_text(path).ok()?)
    }

    /// Returns the resident memory with `anonymous` as its anonymous part, which is the value at the walk of the heaps,
    /// if that part has grown since: the walk does not know which of the new bytes are an allocator's. A difference up
    /// to [`COUNT_ERROR`] is no growth.
    pub(super) fn without_growth_beyond(self, anonymous: u64) -> Self {
        let has_grown = self.anonymous.saturating_sub(anonymous) > COUNT_ERROR;
        Self {
            anonymous: if has_grown { anonymous } else { self.anonymous },
            ..self
        }
    }

    /// Returns the sum of the three parts, which is RSS.
    pub(super) fn total(self) -> u64 {
        self.anonymous + self.file + self.shared
    }

    /// Parses the text of /proc/PID/status. `None` if a field is missing or malformed.
    fn parse(status: &str) -> Option<Self> {
        Some(Self {
            anonymous: bytes_in_line(status, "RssAnon:")?,
            file: bytes_in_line(status, "RssFile:")?,
            shared: bytes_in_line(status, "RssShmem:")?,
        })
    }
}

/// Reads the bytes that a process marked as free until the kernel needs them (`MADV_FREE`). 0 if they cannot be read.
pub(super) fn lazily_free_bytes(pid: u32) -> u64 {
    let path = Path::new("/proc")
        .join(pid.to_string())
        .join("smaps_rollup");
    let rollup = std::fs::read_to_string(path).unwrap_or_default();
    bytes_in_line(&rollup, "LazyFree:").unwrap_or(0)
}

/// Parses the line of a file in /proc that begins with `name`, such as `RssAnon:  12 kB` for `RssAnon:`. Returns bytes.
/// `None` if there is no such line, or its value is in another form.
fn bytes_in_line(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Replaces the rows of a ledger by those of the walk, sets its RSS to `resident`, and replaces the findings that
/// follow from the rows. `lazily_free` are the bytes that the process marked as free until the kernel needs them.
pub(super) fn apply_walk(
    ledger: &mut Ledger,
    walked: &HeapResidency,
    resident: ResidentMemory,
    lazily_free: u64,
) {
    let sampling_before = row_bytes(ledger, LedgerPart::Sampling);
    let mut remaining = resident.anonymous;
    // The kernel's counts are not exact, so no part gets more than the parts before it have left.
    let mut subtract = |bytes: u64| {
        let part = bytes.min(remaining);
        remaining -= part;
        part
    };
    let live = subtract(walked.live);
    let thread_caches = subtract(walked.thread_caches);
    // The cost of sampling is free space in the pages of sampled objects, which the walk counts as fragments.
    let sampling = subtract(sampling_before.min(walked.fragments));
    let fragments = subtract(walked.fragments - sampling);
    let free = subtract(walked.free_pages);
    let metadata = subtract(walked.metadata);
    let others = ledger
        .allocators
        .iter()
        .filter(|heap| !is_walked(heap, walked));
    let missed = bytes_missed_by_walk(ledger, walked);
    let others = others
        .map(resident_upper_bound)
        .fold(0, u64::saturating_add);
    let undivided = subtract(others.saturating_add(missed));
    let rows = [
        (LedgerPart::LiveHeap, live),
        (LedgerPart::ThreadCaches, thread_caches),
        (LedgerPart::Sampling, sampling),
        (LedgerPart::Fragmentation, fragments),
        (LedgerPart::Dirty, free),
        (LedgerPart::Metadata, metadata),
        (LedgerPart::UndividedHeap, undivided),
        (LedgerPart::NotTheAllocator, remaining),
        (LedgerPart::File, resident.file),
        (LedgerPart::Shared, resident.shared),
    ];
    ledger.rows = rows
        .map(|(part, bytes)| LedgerRow {
            name: part.into(),
            bytes,
        })
        .into();
    ledger.rss_bytes = resident.anonymous + resident.file + resident.shared;
    ledger.walk = Some(HeapWalk {
        allocators: walked
            .allocators
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
        untouched_bytes: walked.untouched,
        huge_page_bytes: walked.huge_pages,
        purgeable_bytes: walked.purgeable,
        stopped_us: walked.stopped.as_micros() as u64,
    });
    let replaced = [
        LedgerFindingKind::Uncertain,
        LedgerFindingKind::Fragmentation,
        LedgerFindingKind::ThreadCaches,
        LedgerFindingKind::Dirty,
        LedgerFindingKind::NotTheAllocator,
    ];
    ledger
        .verdicts
        .retain(|finding| replaced.iter().all(|kind| finding.kind != *kind));
    // The rest of the lazily free pages belongs to the program.
    let own_lazily_free = lazily_free.saturating_sub(free).min(remaining);
    let findings = [
        missed_bytes_finding(missed),
        free_pages_finding(
            free,
            walked.purgeable.min(free),
            lazily_free,
            ledger.rss_bytes,
        ),
        fragments_finding(fragments, walked, ledger.rss_bytes),
        thread_caches_finding(thread_caches, walked, ledger.rss_bytes),
        outside_malloc_finding(remaining, own_lazily_free, ledger.rss_bytes),
    ];
    ledger.verdicts.extend(findings.into_iter().flatten());
}

/// Writes into the finding `Uncertain` why the heaps were not walked, in place of its remedy. Adds this finding if
/// there is none.
pub(super) fn note_walk_failure(ledger: &mut Ledger, reason: &str) {
    let remedy = format!("the heaps were not walked from outside: {reason}");
    let mut findings = ledger.verdicts.iter_mut();
    match findings.find(|finding| finding.kind == LedgerFindingKind::Uncertain) {
        Some(finding) => finding.remedy = remedy,
        None => ledger.verdicts.push(LedgerFinding {
            kind: LedgerFindingKind::Uncertain.into(),
            why: "the rows follow from the allocators' own counts, which do not say which pages are resident, nor which \
                  free ones a purge would give back"
                .to_owned(),
            remedy,
        }),
    }
}

/// Builds a finding if the process has notably grown since its heaps were walked, else `None`. `grown` are the bytes of
/// anonymous memory that came since and are in no row; `rss` are all its bytes in memory.
pub(super) fn later_growth_finding(grown: u64, rss: u64) -> Option<LedgerFinding> {
    LedgerFinding::is_notable(grown, rss).then(|| LedgerFinding {
        kind: LedgerFindingKind::Growth.into(),
        why: format!(
            "the process has {} more than when its heaps were walked: the rows of its heaps are of that moment",
            size_text(grown)
        ),
        remedy: "`memprof record` shows who allocates".to_owned(),
    })
}

/// Returns the live bytes that the walked allocators count and the walk did not find, for example those in jemalloc's
/// arena for huge objects; 0 if they are not notable.
fn bytes_missed_by_walk(ledger: &Ledger, walked: &HeapResidency) -> u64 {
    let heaps = ledger
        .allocators
        .iter()
        .filter(|heap| is_walked(heap, walked));
    let counted = heaps.map(|heap| match heap.totals {
        Some(HeapUsage::Detailed(totals)) => totals.allocated.saturating_add(totals.thread_caches),
        Some(HeapUsage::CommittedOnly { .. }) | None => 0,
    });
    let counted = counted.fold(0, u64::saturating_add);
    let found = walked.live + walked.untouched + walked.huge_pages + walked.thread_caches;
    let missed = counted.saturating_sub(found);
    match LedgerFinding::is_notable(missed, counted) {
        true => missed,
        false => 0,
    }
}

/// Builds a finding if the walk missed live memory; `missed` is its bytes. `None` if it missed none.
fn missed_bytes_finding(missed: u64) -> Option<LedgerFinding> {
    (missed > 0).then(|| LedgerFinding {
        kind: LedgerFindingKind::Uncertain.into(),
        why: format!(
            "the allocators count {} of live memory that the walk of their heaps did not find: undivided_heap is an \
             upper bound of what is resident of it",
            size_text(missed)
        ),
        remedy: "a dump shows who allocated it; repeat `memprof ledger` if the program was just growing".to_owned(),
    })
}

/// Returns the bytes in a row of the ledger; 0 if it is missing.
fn row_bytes(ledger: &Ledger, part: LedgerPart) -> u64 {
    let mut rows = ledger.rows.iter();
    rows.find(|row| row.name == part).map_or(0, |row| row.bytes)
}

/// Returns whether the walk contains the heap of an allocator.
fn is_walked(heap: &AllocatorHeap, walked: &HeapResidency) -> bool {
    walked.allocators.contains(&heap.kind.as_str())
}

/// Returns the most bytes that the heap of an allocator may have resident, by its own report; 0 if it reports nothing.
fn resident_upper_bound(heap: &AllocatorHeap) -> u64 {
    match heap.totals {
        Some(HeapUsage::Detailed(totals)) => totals.resident.saturating_add(totals.lazily_free),
        Some(HeapUsage::CommittedOnly { committed }) => committed,
        None => 0,
    }
}

/// Builds a finding if free pages are a notable share of RSS, else `None`. All parameters are in bytes; `lazily_free`
/// are the bytes that the process marked as free (`MADV_FREE`), whether in its heaps or elsewhere.
fn free_pages_finding(
    free: u64,
    purgeable: u64,
    lazily_free: u64,
    rss: u64,
) -> Option<LedgerFinding> {
    LedgerFinding::is_notable(free, rss).then(|| {
        let lazily = match lazily_free.min(free) {
            0 => String::new(),
            bytes => format!(
                ", of which {} are marked as free (`MADV_FREE`): the kernel takes them when memory is short",
                size_text(bytes)
            ),
        };
        let remedy = match purgeable {
            0 => "purging will not help: they are at the ends of other arenas than the main one, which malloc_trim \
                  leaves; use fewer arenas (glibc.malloc.arena_max)"
                .to_owned(),
            bytes => format!(
                "`purge` would give back about {} now; later the allocator keeps them again",
                size_text(bytes)
            ),
        };
        LedgerFinding {
            kind: LedgerFindingKind::Dirty.into(),
            why: format!(
                "{} of RSS are whole free pages that the allocator keeps{lazily}",
                size_text(free)
            ),
            remedy,
        }
    })
}

/// Builds a finding if free memory in pages with live objects is a notable share of RSS, else `None`. `bytes` is this
/// memory.
fn fragments_finding(bytes: u64, walked: &HeapResidency, rss: u64) -> Option<LedgerFinding> {
    LedgerFinding::is_notable(bytes, rss).then(|| {
        let pinned = match walked.allocators.contains(&"jemalloc") {
            true => " (`memprof ledger --pinned`)",
            false => "",
        };
        LedgerFinding {
            kind: LedgerFindingKind::Fragmentation.into(),
            why: format!("{} of RSS are free memory in pages with live objects", size_text(bytes)),
            remedy: format!(
                "purging will not help: look for long-lived objects allocated among short-lived ones{pinned}"
            ),
        }
    })
}

/// Builds a finding if freed objects in the caches of threads are a notable share of RSS, else `None`. `bytes` is the
/// size of these objects.
fn thread_caches_finding(bytes: u64, walked: &HeapResidency, rss: u64) -> Option<LedgerFinding> {
    LedgerFinding::is_notable(bytes, rss).then(|| {
        let setting = match walked.allocators.contains(&"jemalloc") {
            true => "MALLOC_CONF=tcache_max:1024 limits them",
            false => "GLIBC_TUNABLES=glibc.malloc.tcache_count=0 leaves them out",
        };
        LedgerFinding {
            kind: LedgerFindingKind::ThreadCaches.into(),
            why: format!("{} of RSS are freed objects in the caches of threads", size_text(bytes)),
            remedy: format!(
                "purging will not help: a thread keeps its cache until it allocates from it or ends; run fewer idle \
                 threads, or start the program so that {setting}"
            ),
        }
    })
}

/// Builds a finding if memory outside of every allocator is a notable share of RSS, else `None`. All parameters are in
/// bytes; `lazily_free` are those of `bytes` that the process marked as free.
pub(super) fn outside_malloc_finding(
    bytes: u64,
    lazily_free: u64,
    rss: u64,
) -> Option<LedgerFinding> {
    LedgerFinding::is_notable(bytes, rss).then(|| {
        let lazily = match lazily_free {
            0 => String::new(),
            free => format!(
                ", of which {} are marked as free (`MADV_FREE`): the kernel takes them when memory is short",
                size_text(free)
            ),
        };
        LedgerFinding {
            kind: LedgerFindingKind::NotTheAllocator.into(),
            why: format!(
                "{} of RSS are outside of every allocator found{lazily}",
                size_text(bytes)
            ),
            remedy: "a heap profile will not show it: look at thread stacks, mmap calls and other allocators \
                     (pmap -x PID; `memprof holders PID`)"
                .to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use memprof_messages::{AllocatorKind, HeapTotals};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn ledger() -> Ledger {
        Ledger {
            rss_bytes: 0,
            rows: vec![LedgerRow {
                name: LedgerPart::Sampling.into(),
                bytes: MIB,
            }],
            allocators: vec![
                AllocatorHeap {
                    kind: AllocatorKind::Glibc.into(),
                    version: "2.36".to_owned(),
                    owns_malloc: true,
                    totals: Some(HeapUsage::Detailed(HeapTotals {
                        resident: 1 << 30,
                        ..HeapTotals::default()
                    })),
                    sampled: None,
                    error: None,
                },
                AllocatorHeap {
                    kind: AllocatorKind::Mimalloc.into(),
                    version: "2.0.9".to_owned(),
                    owns_malloc: false,
                    totals: Some(HeapUsage::CommittedOnly { committed: 3 * MIB }),
                    sampled: None,
                    error: None,
                },
            ],
            cgroup: None,
            verdicts: [LedgerFindingKind::Uncertain, LedgerFindingKind::Growth]
                .map(|kind| LedgerFinding {
                    kind: kind.into(),
                    why: String::new(),
                    remedy: String::new(),
                })
                .into(),
            smaps: None,
            walk: None,
            parts: Vec::new(),
        }
    }

    /// Applies a walk, all numbers in MiB, and returns the rows and the kinds of the findings.
    fn walked(walked: &HeapResidency, lazily_free: u64) -> (Vec<u64>, Vec<String>, Ledger) {
        let mut ledger = ledger();
        let resident = ResidentMemory {
            anonymous: 200 * MIB,
            file: 2 * MIB,
            shared: MIB,
        };
        apply_walk(&mut ledger, walked, resident, lazily_free);
        let rows: Vec<_> = ledger.rows.iter().map(|row| row.bytes).collect();
        assert_eq!(rows.iter().sum::<u64>(), ledger.rss_bytes);
        let kinds = ledger
            .verdicts
            .iter()
            .map(|finding| finding.kind.to_string());
        (
            rows.iter().map(|bytes| bytes / MIB).collect(),
            kinds.collect(),
            ledger,
        )
    }

    fn glibc() -> HeapResidency {
        HeapResidency {
            allocators: vec!["glibc"],
            ..HeapResidency::default()
        }
    }

    #[test]
    fn growth_since_the_walk_is_left_out() {
        let check = |anonymous, walked, expected| {
            let resident = ResidentMemory {
                anonymous,
                file: 7,
                shared: 8,
            };
            let found = resident.without_growth_beyond(walked);
            assert_eq!(found.anonymous, expected, "{anonymous} {walked}");
            assert_eq!((found.file, found.shared), (7, 8));
        };
        check(50 * MIB, 34 * MIB, 34 * MIB);
        // The kernel's counts are not exact.
        check(50 * MIB, 50 * MIB - 4096, 50 * MIB);
        check(50 * MIB, 50 * MIB, 50 * MIB);
        check(50 * MIB, 60 * MIB, 50 * MIB);
    }

    #[test]
    fn growth_since_the_walk_is_named() {
        assert_eq!(later_growth_finding(0, 64 * MIB), None);
        assert_eq!(later_growth_finding(4096, 64 * MIB), None);
        let finding = later_growth_finding(16 * MIB, 64 * MIB).unwrap();
        assert_eq!(finding.kind, LedgerFindingKind::Growth);
        assert!(finding.why.contains("16.0 MiB more"), "{finding:?}");
    }

    #[test]
    fn untouched_heap_is_not_resident() {
        let (rows, kinds, ledger) = walked(
            &HeapResidency {
                live: 50 * MIB,
                untouched: 300 * MIB,
                metadata: 2 * MIB,
                ..glibc()
            },
            0,
        );
        assert_eq!(rows, [50, 0, 0, 0, 0, 2, 3, 145, 2, 1]);
        assert_eq!(kinds, ["growth", "not_the_allocator"]);
        assert_eq!(ledger.walk.unwrap().untouched_bytes, 300 * MIB);
    }

    #[test]
    fn ledger_without_a_walk_is_uncertain() {
        let mut ledger = ledger();
        ledger.verdicts.clear();
        for reason in ["has ended", "takes 347.5 ms to stop"] {
            note_walk_failure(&mut ledger, reason);
            assert_eq!(ledger.verdicts.len(), 1);
            assert_eq!(ledger.verdicts[0].kind, LedgerFindingKind::Uncertain);
            assert!(ledger.verdicts[0].remedy.ends_with(reason), "{ledger:?}");
        }
    }

    #[test]
    fn findings_follow_from_the_walk() {
        let check = |part: HeapResidency, lazily_free: u64, kind: &str, texts: [&str; 2]| {
            let (_, kinds, ledger) = walked(&part, lazily_free * MIB);
            let found = kinds.iter().position(|each| each == kind);
            let finding = &ledger.verdicts[found.unwrap_or_else(|| panic!("{kinds:?}"))];
            let text = format!("{}; {}", finding.why, finding.remedy);
            for part in texts {
                assert!(text.contains(part), "{text}");
            }
        };
        let free = |purgeable: u64| HeapResidency {
            free_pages: 90 * MIB,
            purgeable: purgeable * MIB,
            ..glibc()
        };
        check(
            free(89),
            0,
            "dirty",
            ["90.0 MiB of RSS", "give back about 89.0 MiB now"],
        );
        check(
            free(90),
            80,
            "dirty",
            ["of which 80.0 MiB are marked as free", "`purge`"],
        );
        check(free(0), 0, "dirty", ["purging will not help", "arena_max"]);
        let fragments = HeapResidency {
            fragments: 60 * MIB,
            ..glibc()
        };
        check(
            fragments,
            0,
            "fragmentation",
            ["59.0 MiB", "purging will not help: look"],
        );
        let caches = HeapResidency {
            thread_caches: 45 * MIB,
            ..glibc()
        };
        check(caches, 0, "thread_caches", ["45.0 MiB", "tcache_count"]);
        check(
            glibc(),
            100,
            "not_the_allocator",
            ["of which 100.0 MiB are marked", "pmap"],
        );
    }

    /// glibc counts 120 MiB of which the walk found 20 MiB.
    #[test]
    fn live_memory_that_the_walk_missed_is_undivided() {
        let mut ledger = ledger();
        ledger.allocators[0].totals = Some(HeapUsage::Detailed(HeapTotals {
            allocated: 120 * MIB,
            ..HeapTotals::default()
        }));
        let resident = ResidentMemory {
            anonymous: 200 * MIB,
            file: 0,
            shared: 0,
        };
        let walked = HeapResidency {
            live: 15 * MIB,
            untouched: 5 * MIB,
            ..glibc()
        };
        apply_walk(&mut ledger, &walked, resident, 0);
        assert_eq!(row_bytes(&ledger, LedgerPart::LiveHeap), 15 * MIB);
        assert_eq!(row_bytes(&ledger, LedgerPart::UndividedHeap), 103 * MIB);
        let mut kinds = ledger.verdicts.iter().map(|finding| &finding.kind);
        assert!(kinds.any(|kind| *kind == LedgerFindingKind::Uncertain));
    }

    #[test]
    fn rows_stay_within_resident_memory() {
        let (rows, _, _) = walked(
            &HeapResidency {
                live: 150 * MIB,
                fragments: 80 * MIB,
                free_pages: u64::MAX / 2,
                ..glibc()
            },
            0,
        );
        assert_eq!(rows, [150, 0, 1, 49, 0, 0, 0, 0, 2, 1]);
    }
}
