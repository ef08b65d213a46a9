//! Findings of the ledger: which parts of the resident memory are notable, and what helps.

use std::time::Duration;

use memprof_messages::{
    AllocatorKind, Cgroup, HeapTotals, LedgerFinding, LedgerFindingKind, SampledObjects, size_text,
};

use super::resident_memory::ResidentMemory;

/// Ratio of active to allocated bytes above which the heap counts as fragmented.
const FRAGMENTED_RATIO: f64 = 1.3;
/// Share of RSS above which a part is reported: dirty pages, for example, or memory outside of the heap.
const NOTABLE_SHARE: f64 = LedgerFinding::MIN_SHARE;
/// Minimum size of a reported part, in bytes.
const NOTABLE_BYTES: u64 = LedgerFinding::MIN_BYTES;
/// Maximum number of bytes in the cache of one thread in glibc: seven chunks in each of 64 bins (malloc.c,
/// `TCACHE_MAX_BINS`). Chunks are 32 to 1040 bytes long.
const MAX_GLIBC_CACHE_BYTES: u64 = 7 * 64 * (32 + 1040) / 2;

/// Live bytes at the time of an earlier ledger, and how long ago that was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlierLedger {
    pub allocated: u64,
    pub ago: Duration,
}

/// Returns a finding if the live heap grew by more than a tenth, and by at least 16 MiB, since an earlier ledger
/// (breakdown of the resident memory). `None` also without an earlier ledger.
pub(super) fn growth_finding(
    live_bytes: u64,
    earlier: Option<EarlierLedger>,
) -> Option<LedgerFinding> {
    let EarlierLedger { allocated, ago } = earlier?;
    let grown = live_bytes.saturating_sub(allocated);
    notable_share(grown, allocated).map(|share| LedgerFinding {
        kind: LedgerFindingKind::Growth.into(),
        why: format!(
            "the live heap grew by {} ({grown} bytes) in {}, above {}",
            format_percent(share),
            humantime::format_duration(Duration::from_secs(ago.as_secs())),
            format_percent(NOTABLE_SHARE)
        ),
        remedy: "`activate`, then three dumps with the load between them: `memprof leaks` names \
                 what grows in each"
            .to_owned(),
    })
}

/// Bytes that the allocators count, resident or not.
pub(super) struct HeapCount {
    pub(super) live: u64,
    /// Committed bytes of the allocators that do not distinguish live from free memory.
    pub(super) undivided: u64,
    /// Whether the ledger can say how much of the heap is resident.
    pub(super) can_split_residency: bool,
    pub(super) has_glibc: bool,
}

/// Returns a finding if it is uncertain how much of the counted heap is resident and in use: the counts exceed the
/// resident memory, or a notable part of the heap may be untouched or free in glibc's thread caches. The upper bound of
/// that part is the private memory that is not resident, plus the maximum size of all thread caches.
pub(super) fn uncertain_residency_finding(
    counted: &HeapCount,
    resident: &ResidentMemory,
) -> Option<LedgerFinding> {
    let caches = match counted.has_glibc {
        true => resident.thread_count.saturating_mul(MAX_GLIBC_CACHE_BYTES),
        false => 0,
    };
    let heap = counted.live.saturating_add(counted.undivided);
    let shown = heap.min(resident.anonymous);
    let most = shown.min(resident.nonresident.saturating_add(caches));
    let rows = match (counted.live > 0, counted.undivided > 0) {
        (true, true) => "live_heap and undivided_heap",
        (false, true) => "undivided_heap",
        _ => "live_heap",
    };
    (!counted.can_split_residency || LedgerFinding::is_notable(most, shown)).then(|| LedgerFinding {
        kind: LedgerFindingKind::Uncertain.into(),
        why: match counted.can_split_residency {
            true => format!(
                "up to {} of {rows} may never have been touched, or wait freed in the caches of {} threads: the \
                 allocators count such memory as used",
                size_text(most),
                resident.thread_count
            ),
            false => format!(
                "the allocators count {} as live, but only {} of private memory are resident: how much of it is heap \
                 cannot be seen from inside the process",
                size_text(counted.live),
                size_text(resident.anonymous)
            ),
        },
        remedy: "run `memprof ledger` on this machine, as the process's user or as root: it walks the heaps of glibc \
                 and jemalloc and reads the page tables"
            .to_owned(),
    })
}

/// Returns a finding if the freed objects in the caches of threads are a notable share of RSS. `bytes` is the total
/// size of these objects.
pub(super) fn thread_caches_finding(bytes: u64, rss: u64) -> Option<LedgerFinding> {
    LedgerFinding::is_notable(bytes, rss).then(|| LedgerFinding {
        kind: LedgerFindingKind::ThreadCaches.into(),
        why: format!("{} are freed objects in the caches of threads", size_text(bytes)),
        remedy: "purging will not help: each thread keeps its cache until it uses or ends it; limit them \
                 (jemalloc: MALLOC_CONF=tcache_max:1024, tcmalloc: TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES), or run \
                 fewer idle threads"
            .to_owned(),
    })
}

/// Returns a finding if sampling costs a notable share of RSS. `bytes` is the resident memory that sampling costs.
/// `sampled` only gives the number of objects for the text.
pub(super) fn sampling_finding(
    sampled: &SampledObjects,
    bytes: u64,
    rss: u64,
) -> Option<LedgerFinding> {
    notable_share(bytes, rss).map(|share| LedgerFinding {
        kind: LedgerFindingKind::Sampling.into(),
        why: format!(
            "{} of RSS are what sampling costs, above {}: each of about {} sampled small objects \
             has a page of its own",
            format_percent(share),
            format_percent(NOTABLE_SHARE),
            sampled.objects
        ),
        remedy: "end the activation (`deactivate`) or sample more coarsely (`reset \
                 sample_interval=512KiB`); the pages go as these objects are freed"
            .to_owned(),
    })
}

/// Returns a finding if the heap is fragmented: the ratio of active to allocated bytes in `heap` exceeds
/// [`FRAGMENTED_RATIO`], and at least 16 MiB are lost. `heap` excludes sampled objects. `lost` is the size
/// of the fragmentation in bytes, without active pages that were never touched. `has` returns whether the process has
/// an allocator of a kind; the remedy depends on it.
pub(super) fn fragmentation_finding(
    heap: &HeapTotals,
    lost: u64,
    has: impl Fn(AllocatorKind) -> bool,
) -> Option<LedgerFinding> {
    let ratio = heap.active as f64 / heap.allocated.max(1) as f64;
    (ratio > FRAGMENTED_RATIO && lost >= NOTABLE_BYTES).then(|| {
        let long_lived = "look for long-lived objects allocated among short-lived ones";
        let (lost_text, remedy) = match (has(AllocatorKind::Jemalloc), has(AllocatorKind::Glibc)) {
            (true, _) => (
                "are lost in partly filled pages",
                format!(
                    "purging will not help: these pages hold live objects beside the free ones; {long_lived} \
                     (`memprof ledger --pinned`)"
                ),
            ),
            (false, true) => (
                "are free between live objects",
                format!(
                    "`purge` gives back the whole pages of it (`memprof ledger` on this machine says how many); for \
                     the rest {long_lived}"
                ),
            ),
            (false, false) => (
                "are free in pages and caches in use",
                format!("purging gives back whole free spans only; {long_lived}"),
            ),
        };
        LedgerFinding {
            kind: LedgerFindingKind::Fragmentation.into(),
            why: format!(
                "active / allocated is {ratio:.2}, above {FRAGMENTED_RATIO}: {lost} bytes {lost_text}"
            ),
            remedy,
        }
    })
}

/// Share of `part` in `whole`. `None` if the share is at most [`NOTABLE_SHARE`], or `part` is less than
/// [`NOTABLE_BYTES`].
fn notable_share(part: u64, whole: u64) -> Option<f64> {
    let share = part as f64 / whole.max(1) as f64;
    (share > NOTABLE_SHARE && part >= NOTABLE_BYTES).then_some(share)
}

/// Returns a finding if dirty pages are a notable share of RSS. Dirty pages are free pages that the allocator has not
/// given back to the kernel. Both arguments are in bytes.
pub(super) fn dirty_pages_finding(dirty: u64, rss: u64) -> Option<LedgerFinding> {
    notable_share(dirty, rss).map(|share| LedgerFinding {
        kind: LedgerFindingKind::Dirty.into(),
        why: format!(
            "{} of RSS are free pages that the allocator keeps, above {}",
            format_percent(share),
            format_percent(NOTABLE_SHARE)
        ),
        remedy: format!(
            "`purge` would give back about {} now; jemalloc's dirty_decay_ms and background_thread do it by \
             themselves",
            size_text(dirty)
        ),
    })
}

/// Returns a finding if memory outside of all allocators is a notable share of RSS. `uncounted` has the names of
/// allocators that keep no count, to which the memory may belong.
pub(super) fn non_allocator_memory_finding(
    bytes: u64,
    rss: u64,
    uncounted: &[String],
) -> Option<LedgerFinding> {
    let share = notable_share(bytes, rss)?;
    let (share, limit) = (format_percent(share), format_percent(NOTABLE_SHARE));
    let (why, remedy) = match uncounted {
        [] => (
            format!("{share} of RSS are outside of every allocator found, above {limit}"),
            "a heap profile will not show it: look at thread stacks, mmap calls and other \
             allocators (pmap -x PID)"
                .to_owned(),
        ),
        names => (
            format!(
                "{share} of RSS are in no allocator's count, above {limit}: {} keeps no count, and may hold it",
                names.join(", ")
            ),
            format!(
                "`memprof record {}` shows what the program allocates of it; the rest is thread stacks and mmap calls \
                 (pmap -x PID)",
                std::process::id()
            ),
        ),
    };
    Some(LedgerFinding {
        kind: LedgerFindingKind::NotTheAllocator.into(),
        why,
        remedy,
    })
}

/// Returns a finding if page cache fills a notable share of the cgroup's limit. If the size of the page cache is
/// unknown, all usage except this process's RSS counts instead. `None` also without a cgroup or a limit.
pub(super) fn page_cache_finding(cgroup: Option<Cgroup>, rss: u64) -> Option<LedgerFinding> {
    let cgroup = cgroup?;
    let limit = cgroup.limit_bytes?;
    let (cache, subject) = match cgroup.file_cache_bytes {
        Some(cache) => (cache, "page cache of files"),
        None => (
            cgroup.usage_bytes.saturating_sub(rss),
            "not this process's RSS",
        ),
    };
    LedgerFinding::is_notable(cache, limit).then(|| LedgerFinding {
        kind: LedgerFindingKind::PageCache.into(),
        why: format!(
            "{} of the cgroup's limit are {subject}, above {}",
            format_percent(cache as f64 / limit.max(1) as f64),
            format_percent(NOTABLE_SHARE)
        ),
        remedy: "the kernel frees page cache under pressure, but not the memory of other processes of the cgroup"
            .to_owned(),
    })
}

/// Returns a finding if shared memory fills a notable share of the cgroup's limit. `None` also without a cgroup or a
/// limit, or if the cgroup does not report its shared memory.
pub(super) fn shared_memory_finding(cgroup: Option<Cgroup>) -> Option<LedgerFinding> {
    let cgroup = cgroup?;
    let (limit, shared) = (cgroup.limit_bytes?, cgroup.shared_bytes?);
    LedgerFinding::is_notable(shared, limit).then(|| LedgerFinding {
        kind: LedgerFindingKind::SharedMemory.into(),
        why: format!(
            "{} of the cgroup's limit are shared memory: memfds, tmpfs, /dev/shm, shared mappings",
            format_percent(shared as f64 / limit.max(1) as f64)
        ),
        remedy: "the kernel cannot free it, only swap it out: close or truncate the files that hold it (memfd_create \
                 counts without a mapping: ls -l /proc/PID/fd; df /dev/shm)"
            .to_owned(),
    })
}

/// Formats a share as a whole percentage, such as `12 %`.
fn format_percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
