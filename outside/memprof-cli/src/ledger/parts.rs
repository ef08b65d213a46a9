//! Parts of a ledger outside of the allocators, by the mappings of the process.

use memprof_leaks::{MappedPart, MappedPartKind};
use memprof_messages::{
    Ledger, LedgerFinding, LedgerFindingKind, LedgerPart, LedgerRow, MemoryPart, MemoryPartKind,
    RuntimeHeap, size_text,
};

/// Number of parts that a finding names.
const MAX_NAMED: usize = 3;

/// Starts of the names of runtime heaps, with the runtime, which has the remedy.
const RUNTIMES: [(&str, RuntimeHeap); 4] = [
    ("Java", RuntimeHeap::Jvm),
    ("V8", RuntimeHeap::V8),
    ("Python", RuntimeHeap::Python),
    ("PHP", RuntimeHeap::Php),
];

/// Adds the parts to a ledger whose heaps were walked. Makes their sum equal to the row `not_the_allocator`, because
/// the kernel's counts were read a little later than the parts.
pub(super) fn apply_parts(ledger: &mut Ledger, found: &[MappedPart], pid: u32) {
    ledger.parts = found.iter().map(to_memory_part).collect();
    let expected = find_row(ledger, LedgerPart::NotTheAllocator).map_or(0, |row| row.bytes);
    fit_parts_to_sum(&mut ledger.parts, expected);
    name_parts_in_finding(ledger, pid);
}

/// Returns the rows and parts of a process whose heaps were not walked. The first row, `NotKnown`, is memory that may
/// be an allocator's; the second, `NotTheAllocator`, is certainly not. The rows sum to `anonymous`, the bytes of its
/// resident anonymous memory.
pub(super) fn rows_without_walk(
    anonymous: u64,
    found: &[MappedPart],
) -> (Vec<LedgerRow>, Vec<MemoryPart>) {
    let is_proven =
        |part: &&MappedPart| !matches!(part.kind, MappedPartKind::NotKnown | MappedPartKind::Brk);
    let mut parts: Vec<_> = found.iter().filter(is_proven).map(to_memory_part).collect();
    let proven = parts.iter().map(|part| part.resident_bytes).sum::<u64>();
    let proven = proven.min(anonymous);
    fit_parts_to_sum(&mut parts, proven);
    let rows = [
        (LedgerPart::NotKnown, anonymous - proven),
        (LedgerPart::NotTheAllocator, proven),
    ];
    let rows = rows.map(|(part, bytes)| LedgerRow {
        name: part.into(),
        bytes,
    });
    (rows.into(), parts)
}

/// Converts a part that was found in the process's mappings to a part of the ledger.
fn to_memory_part(part: &MappedPart) -> MemoryPart {
    let kind = match part.kind {
        MappedPartKind::LanguageHeap => MemoryPartKind::LanguageHeap,
        MappedPartKind::CompiledCode => MemoryPartKind::CompiledCode,
        MappedPartKind::ThreadStacks => MemoryPartKind::ThreadStacks,
        MappedPartKind::Variables => MemoryPartKind::Variables,
        MappedPartKind::Brk => MemoryPartKind::Brk,
        MappedPartKind::Named => MemoryPartKind::Named,
        MappedPartKind::Memprof => MemoryPartKind::Memprof,
        MappedPartKind::NotKnown => MemoryPartKind::NotKnown,
        MappedPartKind::HugePages => MemoryPartKind::HugePages,
        MappedPartKind::Device => MemoryPartKind::Device,
    };
    MemoryPart {
        owner: part.owner.clone(),
        kind: kind.into(),
        resident_bytes: part.resident,
        mapped_bytes: part.mapped,
    }
}

/// Makes the parts sum to `expected` bytes. Adds missing bytes to the unknown part; subtracts excess bytes from the
/// unknown part first, then from the largest ones. Then removes parts without bytes, except huge pages and devices,
/// which have none by the kernel's count.
fn fit_parts_to_sum(parts: &mut Vec<MemoryPart>, expected: u64) {
    let sum: u64 = parts.iter().map(|part| part.resident_bytes).sum();
    let is_unknown = |part: &MemoryPart| part.kind == MemoryPartKind::NotKnown;
    if sum < expected {
        let missing = expected - sum;
        match parts.iter_mut().find(|part| is_unknown(part)) {
            Some(part) => part.resident_bytes += missing,
            None => parts.push(MemoryPart {
                owner: "not known".to_owned(),
                kind: MemoryPartKind::NotKnown.into(),
                resident_bytes: missing,
                mapped_bytes: missing,
            }),
        }
    }
    let mut excess = sum.saturating_sub(expected);
    parts.sort_by_key(|part| (!is_unknown(part), std::cmp::Reverse(part.resident_bytes)));
    for part in parts.iter_mut() {
        let less = excess.min(part.resident_bytes);
        part.resident_bytes -= less;
        excess -= less;
    }
    parts.retain(|part| part.resident_bytes > 0 || is_outside_rss(part));
    parts.sort_by_key(|part| std::cmp::Reverse(part.resident_bytes));
}

/// Returns whether the kernel does not count the part as resident memory of the process.
fn is_outside_rss(part: &MemoryPart) -> bool {
    part.kind == MemoryPartKind::HugePages || part.kind == MemoryPartKind::Device
}

/// Finds the row of a part. `None` if the ledger lacks it.
fn find_row(ledger: &Ledger, part: LedgerPart) -> Option<&LedgerRow> {
    ledger.rows.iter().find(|row| row.name == part)
}

/// Adds the names and sizes of the largest parts to the finding that much memory is outside of the allocators, and
/// gives the finding the remedy for the largest part. The parts must be sorted, the largest first. Does nothing without
/// such a finding, or without resident parts.
pub(super) fn name_parts_in_finding(ledger: &mut Ledger, pid: u32) {
    let resident = ledger.parts.iter().filter(|part| part.resident_bytes > 0);
    let named: Vec<_> = resident
        .take(MAX_NAMED)
        .map(|part| format!("{} {}", part.owner, size_text(part.resident_bytes)))
        .collect();
    let Some(largest) = ledger.parts.first().filter(|_| !named.is_empty()) else {
        return;
    };
    let remedy = part_remedy(largest).replace("PID", &pid.to_string());
    let mut findings = ledger.verdicts.iter_mut();
    let outside = LedgerFindingKind::NotTheAllocator;
    if let Some(finding) = findings.find(|finding| finding.kind == outside) {
        finding.why = format!("{} ({})", finding.why, named.join(", "));
        finding.remedy = remedy;
    }
}

/// Returns the remedy if a part has much memory, by its kind and owner. `PID` in the text stands for the pid.
fn part_remedy(part: &MemoryPart) -> String {
    let runtime = RUNTIMES
        .iter()
        .find(|(start, _)| part.owner.starts_with(start));
    match (part.kind.known(), runtime) {
        (Some(MemoryPartKind::LanguageHeap), Some((_, runtime))) => {
            runtime.message_and_remedy().1.to_owned()
        }
        (Some(MemoryPartKind::LanguageHeap), None) => {
            "no heap profile of malloc shows it; Go's own does: net/http/pprof or runtime/pprof, then \
             `go tool pprof` or `memprof report`"
                .to_owned()
        }
        (Some(MemoryPartKind::ThreadStacks), _) => {
            "run fewer threads, or give them smaller stacks (ulimit -s)".to_owned()
        }
        (Some(MemoryPartKind::Variables), _) => {
            "`nm --size-sort --print-size PROGRAM` lists the largest variables".to_owned()
        }
        (Some(MemoryPartKind::CompiledCode), _) => {
            "-XX:ReservedCodeCacheSize limits it".to_owned()
        }
        (Some(MemoryPartKind::Memprof), _) => {
            "sample more coarsely (sample_interval=4MiB), or end the activation".to_owned()
        }
        (Some(MemoryPartKind::Named), _) => {
            "the program gave this memory its name (prctl PR_SET_VMA): look for that".to_owned()
        }
        _ => "no heap profile shows it: mmap calls of the program's own, or an allocator that memprof does not know; \
              `memprof holders PID` names what points to heap objects from there, `strace -k -f -e mmap -p PID` who \
              maps more of it"
            .to_owned(),
    }
}

/// Builds the finding that the heaps were not walked, with the reason.
pub(super) fn heaps_not_walked_finding(reason: &str) -> LedgerFinding {
    LedgerFinding {
        kind: LedgerFindingKind::Uncertain.into(),
        why: format!(
            "the heap of malloc is in not_known: it was not walked: {reason}"
        ),
        remedy: "`memprof record` shows who allocates in a process that can be attached to, whatever its allocator"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: MappedPartKind, owner: &str, resident: u64) -> MappedPart {
        MappedPart {
            owner: owner.to_owned(),
            kind,
            resident,
            mapped: 2 * resident,
        }
    }

    #[test]
    fn parts_sum_to_their_row() {
        use MappedPartKind::{LanguageHeap, NotKnown, ThreadStacks};
        let found = [
            part(LanguageHeap, "Java heap", 50),
            part(ThreadStacks, "thread stacks", 20),
            part(NotKnown, "not known", 10),
        ];
        let check = |expected: u64, rest: &[(&str, u64)]| {
            let mut parts: Vec<_> = found.iter().map(to_memory_part).collect();
            fit_parts_to_sum(&mut parts, expected);
            let all: Vec<_> = parts
                .iter()
                .map(|part| (part.owner.as_str(), part.resident_bytes))
                .collect();
            assert_eq!(all, rest, "{expected}");
        };
        let [java, stacks] = [("Java heap", 50), ("thread stacks", 20)];
        check(80, &[java, stacks, ("not known", 10)]);
        check(100, &[java, ("not known", 30), stacks]);
        check(72, &[java, stacks, ("not known", 2)]);
        check(60, &[("Java heap", 40), stacks]);
        check(0, &[]);
    }

    #[test]
    fn rest_without_walk_is_not_known() {
        use MappedPartKind::{Brk, Device, LanguageHeap, NotKnown};
        let found = [
            part(LanguageHeap, "V8 heap (JavaScript)", 50),
            part(Brk, "[heap] (brk)", 30),
            part(NotKnown, "not known", 10),
            part(Device, "devices", 0),
        ];
        let (rows, parts) = rows_without_walk(95, &found);
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.bytes))
            .collect();
        assert_eq!(rows, [("not_known", 45), ("not_the_allocator", 50)]);
        let owners: Vec<_> = parts.iter().map(|part| part.owner.as_str()).collect();
        assert_eq!(owners, ["V8 heap (JavaScript)", "devices"]);
    }

    #[test]
    fn remedy_is_that_of_the_largest_part() {
        use MappedPartKind::{LanguageHeap, NotKnown, ThreadStacks};
        let check = |kind, owner: &str, expected: &str| {
            let remedy = part_remedy(&to_memory_part(&part(kind, owner, 1)));
            assert!(remedy.contains(expected), "{remedy}");
        };
        check(LanguageHeap, "Java heap", "GC.class_histogram");
        check(
            LanguageHeap,
            "Python objects (pymalloc)",
            "PYTHONMALLOC=malloc",
        );
        check(
            LanguageHeap,
            "PHP heap (Zend memory manager)",
            "USE_ZEND_ALLOC=0",
        );
        check(LanguageHeap, "V8 heap (JavaScript)", "writeHeapSnapshot");
        check(
            LanguageHeap,
            "Go heap and goroutine stacks",
            "net/http/pprof",
        );
        check(ThreadStacks, "thread stacks", "fewer threads");
        check(NotKnown, "not known", "mmap");
    }
}
