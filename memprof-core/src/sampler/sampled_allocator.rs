//! The allocator whose blocks memprof's sampler samples.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::identity::AllocatorIdentity;

/// Address of the sampled allocator ([`AllocatorIdentity::address`]); 0 for the one of `malloc`, before the
/// allocators were searched.
static SAMPLED_ALLOCATOR: AtomicUsize = AtomicUsize::new(0);
/// Set once a second allocator was sampled: a thread may still be about to store a sample of the first one.
static SAMPLED_SEVERAL: AtomicBool = AtomicBool::new(false);

/// Whether all samples of memprof's sampler certainly belong to this allocator: no other one was sampled since
/// the program's start.
pub(super) fn is_only_sampled(allocator: &AllocatorIdentity) -> bool {
    let is_current = match SAMPLED_ALLOCATOR.load(Ordering::Acquire) {
        0 => allocator.owns_malloc,
        sampled => sampled == allocator.address,
    };
    is_current && !SAMPLED_SEVERAL.load(Ordering::Acquire)
}

/// Whether sampling is on, or samples are stored.
fn has_samples() -> bool {
    memprof_sampler::interval() > 0 || memprof_sampler::counts().samples > 0
}

/// Whether slots and entries, if patched, are those of this allocator's sampling: no other one was sampled since.
pub(super) fn may_have_sampled(allocator: &AllocatorIdentity) -> bool {
    [0, allocator.address].contains(&SAMPLED_ALLOCATOR.load(Ordering::Acquire))
}

/// Whether the samples, if there are any, are of another allocator.
pub(super) fn is_another(allocator: &AllocatorIdentity) -> bool {
    match SAMPLED_ALLOCATOR.load(Ordering::Acquire) {
        0 => has_samples() && !allocator.owns_malloc,
        sampled => sampled != allocator.address,
    }
}

/// Records that samples are not of one allocator only.
pub(super) fn mark_several_allocators() {
    SAMPLED_SEVERAL.store(true, Ordering::Release);
}

/// Records the allocator that is sampled from now on.
pub(super) fn set(allocator: &AllocatorIdentity) {
    SAMPLED_ALLOCATOR.store(allocator.address, Ordering::Release);
}
