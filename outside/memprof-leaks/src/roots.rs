//! Roots: pointers of a program outside its heap.

mod kernel;
mod stack_blocks;

use std::ops::Range;

use memprof_ptrace::process::count_memory_sharers;

use crate::address_ranges::push_difference;
use crate::snapshot::Snapshot;
use crate::snapshot_memory::SnapshotMemory;
use crate::unsearched::Unsearched;

/// Memory and words that are scanned for pointers.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// Memory outside the heap, by address.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Parts of stacks that are not scanned: below the stack pointers of their threads.
    pub(crate) unused_stacks: Vec<Range<u64>>,
    /// Words that the kernel has stored for the process.
    pub(crate) kernel: Vec<u64>,
    /// Memory and kernel objects that may hold pointers and could not be scanned.
    pub(crate) unsearched: Vec<Unsearched>,
}

/// Finds the roots of a process. `own` are the ranges of the allocators, by address, which are no roots. Neither are
/// the unused parts of stacks, unless another process shares the memory. Memory that cannot be read is noted.
pub(crate) fn find_roots(snapshot: &Snapshot, view: &SnapshotMemory, own: &[Range<u64>]) -> Roots {
    let mut roots = Roots::default();
    // While a child of vfork(2) shares the memory, its frames lie right below its parent's, so no part counts as
    // unused.
    let unused = match count_memory_sharers(snapshot.pid) {
        0 => stack_blocks::unused_stack_parts(view, &snapshot.threads, snapshot.pid),
        _ => Vec::new(),
    };
    for region in &view.regions {
        if region.is_writable && snapshot.devices.contains(&region.range) {
            roots.unsearched.push(Unsearched::for_bytes(
                region.range.end - region.range.start,
                format!(
                    "a device's memory at {:#x} ({})",
                    region.range.start, region.name
                ),
                "only the process itself can read it",
            ));
            continue;
        }
        for pages in &region.pages {
            let mut used = Vec::new();
            push_difference(pages.clone(), &unused, &mut used);
            for used in used {
                push_difference(used, own, &mut roots.ranges);
            }
        }
    }
    roots.unused_stacks = unused;
    roots.unsearched.extend(snapshot.uncopied.notes());
    roots.unsearched.extend(snapshot.shared.notes());
    roots.unsearched.extend(view.unread_shared.iter().cloned());
    kernel::add_kernel_words(snapshot.pid, view, &snapshot.threads, &mut roots);
    roots
}
