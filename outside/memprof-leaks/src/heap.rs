//! The heaps of a process, without symbols: what is there proves itself by its own figures, or is no heap.

mod glibc;
mod jemalloc;
mod unsupported;

use std::ops::Range;

use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::snapshot::Registers;
use crate::snapshot_memory::SnapshotMemory;

/// What was found of an allocator.
#[derive(Debug, Default)]
pub(crate) struct FoundHeap {
    /// Where the allocator has objects, and of what size.
    pub(crate) spans: Vec<Span>,
    /// Used according to the spans, but in a cache of the allocator's.
    pub(crate) cached: Vec<u64>,
    /// Objects of the allocator's own, whose words hold nothing.
    pub(crate) silent: Vec<u64>,
    /// Objects of which the allocator's profiler may know the stack, by address, and its context of each.
    pub(crate) contexts: Vec<(u64, u64)>,
    /// Memory whose words hold nothing: the heap, whose objects count when they are reached, and the
    /// allocator's own.
    pub(crate) own: Vec<Range<u64>>,
    /// What did not prove itself. It is searched for pointers, and nothing of it is told to be leaked.
    pub(crate) unproven: Vec<String>,
    /// Heaps that are there, and of which nothing is told.
    pub(crate) unknown: Vec<String>,
}

/// The heaps of all allocators in a process, and whose they are.
///
/// # Errors
/// `NoHeap`, `Memory`.
pub(crate) fn find_heaps(
    view: &SnapshotMemory,
    threads: &[Registers],
    budget: &mut MemoryBudget,
) -> Result<(Vec<&'static str>, FoundHeap), Error> {
    if let Some(name) = unsupported::library(view) {
        let message = format!("its malloc is that of {name}, whose heap memprof cannot read");
        return Err(Error::NoHeap(message));
    }
    let found = [
        ("glibc", glibc::heap(view, threads, budget)?),
        ("jemalloc", jemalloc::heap(view, threads, budget)?),
    ];
    let (mut names, mut all) = (Vec::new(), FoundHeap::default());
    for (name, heap) in found {
        names.extend(heap.as_ref().map(|_| name));
        all.extend(heap.unwrap_or_default());
    }
    let other = match names.contains(&"jemalloc") {
        true => None,
        false => unsupported::jemalloc(view)
            .map(|file| format!("memprof cannot read the heap of the jemalloc in {file}")),
    };
    match (names.is_empty(), other) {
        (true, other) => Err(Error::NoHeap(other.unwrap_or_else(|| {
            "found neither a heap of glibc's malloc nor one of jemalloc 5.3".to_owned()
        }))),
        (false, other) => {
            let other = other.map(|other| format!("{other}: none of its objects is reported"));
            all.unknown.extend(other);
            Ok((names, all))
        }
    }
}

impl FoundHeap {
    /// Adds another allocator's.
    pub(crate) fn extend(&mut self, other: Self) {
        self.spans.extend(other.spans);
        self.cached.extend(other.cached);
        self.silent.extend(other.silent);
        self.contexts.extend(other.contexts);
        self.own.extend(other.own);
        self.unproven.extend(other.unproven);
        self.unknown.extend(other.unknown);
    }
}
