//! The heaps of a process, without symbols: what is there proves itself by its own figures, or is no heap.

pub(crate) mod glibc;
pub(crate) mod jemalloc;

use std::ops::Range;

use crate::objects::Span;

/// What was found of an allocator.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// Its objects.
    pub(crate) spans: Vec<Span>,
    /// Used according to the spans, but in a cache of the allocator's.
    pub(crate) cached: Vec<u64>,
    /// Objects of the allocator's own, whose words hold nothing.
    pub(crate) silent: Vec<u64>,
    /// Memory whose words hold nothing: the heap, whose objects count when they are reached, and the
    /// allocator's own.
    pub(crate) own: Vec<Range<u64>>,
    /// What did not prove itself. It is searched for pointers, and nothing of it is told to be leaked.
    pub(crate) unproven: Vec<String>,
}

impl Heap {
    /// Adds another allocator's.
    pub(crate) fn extend(&mut self, other: Self) {
        self.spans.extend(other.spans);
        self.cached.extend(other.cached);
        self.silent.extend(other.silent);
        self.own.extend(other.own);
        self.unproven.extend(other.unproven);
    }
}
