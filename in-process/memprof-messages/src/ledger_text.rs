//! Texts for people about the resident memory. The plugin and `memprof ledger` write them.

use crate::{AllocatorHeap, HeapUsage, HeapWalk, Ledger, LedgerPart, MemoryPart, PurgeResult};

/// Formats the ledger, in several lines. The first ones are a table of resident memory, in which the known parts of the
/// memory outside of the allocators are indented below its row. The further lines are about parts that are not
/// resident, the allocators, and the findings. The cgroup, the walk of the heaps and the mappings also have a line, if
/// the ledger contains them.
pub fn ledger_text(ledger: &Ledger) -> String {
    let share = |part: u64| part as f64 * 100.0 / ledger.rss_bytes.max(1) as f64;
    let (resident, beside): (Vec<_>, Vec<_>) = ledger
        .parts
        .iter()
        .partition(|part| part.resident_bytes > 0);
    let indented = |part: &MemoryPart| format!("  {}", part.owner);
    let widths = resident.iter().map(|part| indented(part).chars().count());
    // 18 columns are enough for the name of each row.
    let width = widths.fold(18, usize::max);
    let line = |name: &str, part: u64| {
        format!(
            "{name:<width$} {part:>16}  {:>10}  {:>5.1} %\n",
            size_text(part),
            share(part)
        )
    };
    let mut text = String::new();
    for row in &ledger.rows {
        text += &line(row.name.as_str(), row.bytes);
        if row.name == LedgerPart::NotTheAllocator {
            let parts = resident.iter();
            text.extend(parts.map(|part| line(&indented(part), part.resident_bytes)));
        }
    }
    text += &line("rss", ledger.rss_bytes);
    for part in beside {
        let size = size_text(part.mapped_bytes);
        text += &format!("outside of rss: {size} of {}\n", part.owner);
    }
    for heap in &ledger.allocators {
        text += &heap_text(heap);
    }
    if let Some(cgroup) = ledger.cgroup {
        let limit = cgroup.limit_bytes.map_or("none".to_owned(), size_text);
        text += &format!(
            "cgroup: {} used, limit {limit}\n",
            size_text(cgroup.usage_bytes)
        );
    }
    if let Some(walk) = &ledger.walk {
        text += &walk_text(walk);
    }
    if let Some(smaps) = &ledger.smaps {
        text += &format!(
            "mappings: {} proportional, {} private dirty, {} lazily free, {} in huge pages, {} \
             swapped\n",
            size_text(smaps.pss_bytes),
            size_text(smaps.private_dirty_bytes),
            size_text(smaps.lazy_free_bytes),
            size_text(smaps.anon_huge_pages_bytes),
            size_text(smaps.swap_bytes)
        );
    }
    for finding in &ledger.verdicts {
        text += &format!("{}: {}; {}\n", finding.kind, finding.why, finding.remedy);
    }
    text
}

/// Formats the line about one allocator, such as `tcmalloc 2.10: counts 12.3 MiB as live and 14.0 MiB as resident`.
/// Without totals, the line has the error, or says that the allocator keeps no count.
fn heap_text(heap: &AllocatorHeap) -> String {
    let usage = match (&heap.totals, &heap.error) {
        (Some(HeapUsage::Detailed(totals)), _) => {
            let (live, resident) = (size_text(totals.allocated), size_text(totals.resident));
            format!("counts {live} as live and {resident} as resident")
        }
        (Some(HeapUsage::CommittedOnly { committed }), _) => {
            let committed = size_text(*committed);
            format!("at most {committed}; it does not separate live memory from free")
        }
        (None, Some(error)) => error.clone(),
        (None, None) => "it keeps no count".to_owned(),
    };
    let owner = if heap.owns_malloc { " (malloc)" } else { "" };
    format!("{} {}{owner}: {usage}\n", heap.kind, heap.version)
}

/// Formats the line about a walk of the heaps, such as `walked glibc from outside, stopped for 2.1 ms: 1.0 GiB of live
/// objects are not resident (…), purge would give back 12.3 MiB`.
fn walk_text(walk: &HeapWalk) -> String {
    let mut parts = Vec::new();
    if walk.untouched_bytes > 0 {
        parts.push(format!(
            "{} of live objects are not resident (not touched yet, or swapped out)",
            size_text(walk.untouched_bytes)
        ));
    }
    if walk.huge_page_bytes > 0 {
        let bytes = size_text(walk.huge_page_bytes);
        parts.push(format!("{bytes} of them are in huge pages, outside of RSS"));
    }
    parts.push(format!(
        "purge would give back {}",
        estimate_text(walk.purgeable_bytes)
    ));
    format!(
        "walked {} from outside, stopped for {:.1} ms: {}\n",
        walk.allocators.join(", "),
        walk.stopped_us as f64 / 1000.0,
        parts.join(", ")
    )
}

/// Minimum of an estimate to show as a number, in bytes. In a smaller one, a few pages more or less would matter.
const LEAST_ESTIMATE: u64 = 1 << 20;

/// Formats an estimated size, such as `12.3 MiB`, or `less than 1 MiB` below [`LEAST_ESTIMATE`].
fn estimate_text(bytes: u64) -> String {
    match bytes {
        0..LEAST_ESTIMATE => "less than 1 MiB".to_owned(),
        bytes => size_text(bytes),
    }
}

/// Source of the estimate of a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeEstimate {
    /// The allocators' counts of free pages, some of which may not be resident.
    Counts,
    /// A walk of the heaps, which reads which pages are resident.
    Walk,
}

/// Formats the bytes that `purge` released, and the resident bytes before and after. If the result has an estimate,
/// the text also has the estimated bytes. With `source` [`PurgeEstimate::Counts`], the estimate is shown as an upper
/// bound.
pub fn purged_text(purged: &PurgeResult, source: PurgeEstimate) -> String {
    let (before, after) = (purged.anonymous_before_bytes, purged.anonymous_after_bytes);
    let released = size_text(purged.released_bytes);
    let estimated = purged.estimated_bytes.map_or(String::new(), |bytes| {
        let most = match source {
            PurgeEstimate::Counts if bytes >= LEAST_ESTIMATE => "at most ",
            _ => "",
        };
        format!(" of the {most}{} estimated before", estimate_text(bytes))
    });
    format!(
        "gave back {released}{estimated}: {} resident before, {} after",
        size_text(before),
        size_text(after)
    )
}

/// Formats a number of bytes with one decimal, such as `12.3 MiB`, or without one below 1 KiB, such as `512 B`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LedgerPart, LedgerRow};

    #[test]
    fn walk_is_a_line_of_the_ledger() {
        let ledger = Ledger {
            rss_bytes: 200 << 20,
            rows: vec![LedgerRow {
                name: LedgerPart::LiveHeap.into(),
                bytes: 50 << 20,
            }],
            allocators: Vec::new(),
            cgroup: None,
            verdicts: Vec::new(),
            smaps: None,
            walk: Some(HeapWalk {
                allocators: vec!["glibc".to_owned()],
                untouched_bytes: 300 << 20,
                huge_page_bytes: 0,
                purgeable_bytes: 1 << 20,
                stopped_us: 2100,
            }),
            parts: Vec::new(),
        };
        let expected = "\
            live_heap                  52428800    50.0 MiB   25.0 %\n\
            rss                       209715200   200.0 MiB  100.0 %\n\
            walked glibc from outside, stopped for 2.1 ms: 300.0 MiB of live objects are not resident (not touched \
            yet, or swapped out), purge would give back 1.0 MiB\n";
        assert_eq!(ledger_text(&ledger), expected);
    }

    #[test]
    fn parts_are_below_their_row() {
        let part = |owner: &str, resident_bytes| MemoryPart {
            owner: owner.to_owned(),
            kind: crate::MemoryPartKind::LanguageHeap.into(),
            resident_bytes,
            mapped_bytes: 3 << 20,
        };
        let row = |name: LedgerPart, mebibytes: u64| LedgerRow {
            name: name.into(),
            bytes: mebibytes << 20,
        };
        let ledger = Ledger {
            rss_bytes: 8 << 20,
            rows: vec![
                row(LedgerPart::NotTheAllocator, 2),
                row(LedgerPart::File, 6),
            ],
            allocators: Vec::new(),
            cgroup: None,
            verdicts: Vec::new(),
            smaps: None,
            walk: None,
            parts: vec![part("V8 heap (JavaScript)", 2 << 20), part("devices", 0)],
        };
        let expected = "\
            not_the_allocator               2097152     2.0 MiB   25.0 %\n  \
              V8 heap (JavaScript)          2097152     2.0 MiB   25.0 %\n\
            file                            6291456     6.0 MiB   75.0 %\n\
            rss                             8388608     8.0 MiB  100.0 %\n\
            outside of rss: 3.0 MiB of devices\n";
        assert_eq!(ledger_text(&ledger), expected);
    }

    #[test]
    fn purge_is_compared_with_its_estimate() {
        let check = |estimated_bytes: Option<u64>, source: PurgeEstimate, estimate: &str| {
            let purged = PurgeResult {
                anonymous_before_bytes: 100 << 20,
                anonymous_after_bytes: 10 << 20,
                released_bytes: 90 << 20,
                estimated_bytes,
            };
            let expected =
                format!("gave back 90.0 MiB{estimate}: 100.0 MiB resident before, 10.0 MiB after");
            assert_eq!(purged_text(&purged, source), expected);
        };
        use PurgeEstimate::{Counts, Walk};
        check(None, Counts, "");
        check(Some(91 << 20), Walk, " of the 91.0 MiB estimated before");
        check(
            Some(91 << 20),
            Counts,
            " of the at most 91.0 MiB estimated before",
        );
        for source in [Counts, Walk] {
            check(
                Some(80 << 10),
                source,
                " of the less than 1 MiB estimated before",
            );
        }
    }

    #[test]
    fn bytes_have_units() {
        let check = |count, expected: &str| assert_eq!(size_text(count), expected);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1536, "1.5 KiB");
        check(3 << 40, "3.0 TiB");
        check(u64::MAX, "16777216.0 TiB");
    }
}
