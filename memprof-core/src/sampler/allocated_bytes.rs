//! Bytes that an allocator says the program holds, with which the samples are compared.

use memprof_messages::HeapUsage;

use crate::allocators::allocator::Allocator;

/// Bytes in blocks that the program got from an allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocatedBytes {
    pub(super) bytes: u64,
    /// Whether free blocks are excluded. If not, `bytes` is an upper bound.
    pub(super) is_exact: bool,
}

/// Returns the allocated bytes, or their upper bound. `None` if the allocator keeps no count, or refuses, which is
/// logged.
pub(super) fn allocated_bytes(allocator: &Allocator) -> Option<AllocatedBytes> {
    let totals = allocator.heap_usage();
    match totals.inspect_err(|error| log::debug!("{error}")).ok()?? {
        HeapUsage::Detailed(totals) => Some(AllocatedBytes {
            bytes: totals.allocated,
            is_exact: true,
        }),
        HeapUsage::CommittedOnly { committed } => Some(AllocatedBytes {
            bytes: committed,
            is_exact: false,
        }),
    }
}

/// Returns the allocated bytes. `None` if the allocator does not distinguish allocated from free blocks, keeps no
/// count, or refuses.
pub(super) fn exact_allocated_bytes(allocator: &Allocator) -> Option<u64> {
    let allocated = allocated_bytes(allocator).filter(|allocated| allocated.is_exact);
    allocated.map(|allocated| allocated.bytes)
}
