//! Records which allocator's blocks memprof's sampler samples.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::identity::AllocatorIdentity;

/// Address of the sampled allocator ([`AllocatorIdentity::address`]). 0 until the first [`set_sampled_allocator`]:
/// until then, only the allocator of `malloc` can be sampled.
static SAMPLED_ALLOCATOR: AtomicUsize = AtomicUsize::new(0);
/// Set when a second allocator is sampled, and never cleared: a thread may still be about to store a sample of the
/// first one.
static SAMPLED_SEVERAL: AtomicBool = AtomicBool::new(false);

/// Whether all samples of memprof's sampler certainly belong to this allocator, because no other allocator was sampled
/// since the program's start.
pub(super) fn is_only_sampled_allocator(allocator: &AllocatorIdentity) -> bool {
    let is_current = match SAMPLED_ALLOCATOR.load(Ordering::Acquire) {
        0 => allocator.owns_malloc,
        sampled => sampled == allocator.address,
    };
    is_current && !SAMPLED_SEVERAL.load(Ordering::Acquire)
}

/// Whether sampling is on, or samples are stored.
fn may_have_samples() -> bool {
    memprof_sampler::interval() > 0 || memprof_sampler::counts().samples > 0
}

/// Whether GOT slots and entry patches may have sampled this allocator: [`set_sampled_allocator`] recorded it last, or
/// has recorded none yet.
pub(super) fn may_have_sampled(allocator: &AllocatorIdentity) -> bool {
    [0, allocator.address].contains(&SAMPLED_ALLOCATOR.load(Ordering::Acquire))
}

/// Whether the samples, if any, belong to an allocator other than this one. Before the first [`set_sampled_allocator`],
/// they belong to the allocator of `malloc`.
pub(super) fn may_have_sampled_another(allocator: &AllocatorIdentity) -> bool {
    match SAMPLED_ALLOCATOR.load(Ordering::Acquire) {
        0 => may_have_samples() && !allocator.owns_malloc,
        sampled => sampled != allocator.address,
    }
}

/// Records that samples may belong to several allocators.
pub(super) fn mark_several_allocators() {
    SAMPLED_SEVERAL.store(true, Ordering::Release);
}

/// Records which allocator is sampled from now on. Earlier samples may belong to another one.
pub(super) fn set_sampled_allocator(allocator: &AllocatorIdentity) {
    SAMPLED_ALLOCATOR.store(allocator.address, Ordering::Release);
}
