//! The heaps of a process, without symbols: what is there proves itself by its own figures, or is no heap.

pub(crate) mod glibc;

use std::ops::Range;

use crate::objects::Span;

/// What was found of an allocator.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// Its objects.
    pub(crate) spans: Vec<Span>,
    /// Used according to the spans, but in a cache of the allocator's.
    pub(crate) cached: Vec<u64>,
    /// Memory whose words hold nothing: the heap, whose objects count when they are reached, and the
    /// allocator's own.
    pub(crate) own: Vec<Range<u64>>,
    /// What did not prove itself. It is searched for pointers, and nothing of it is told to be leaked.
    pub(crate) unproven: Vec<String>,
}
