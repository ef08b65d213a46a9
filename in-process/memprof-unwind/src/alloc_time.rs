//! Allocation time of a sample, as a pseudo frame above its outermost frame: allocators keep stacks
//! apart that differ only in their last frames, so a profile reports the age of each block.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Upper 24 bits of the pseudo frame: no address that a processor accepts, and the kind "allocation
/// time".
const KIND: usize = 0x4d_5002;

/// Pseudo frame that ends every stack from now on; 0 for none.
static FRAME: AtomicUsize = AtomicUsize::new(0);

/// Sets the allocation time of the samples from now on, in seconds since 1970. `None`: without a
/// time.
pub fn set_alloc_time(second: Option<u32>) {
    // The lowest bit is set because tools show a caller as the byte before its return address: the
    // bits above are the same with and without that subtraction.
    let frame = second.map_or(0, |second| KIND << 40 | (second as usize) << 1 | 1);
    FRAME.store(frame, Relaxed);
}

/// Pseudo frame for a sample that is taken now. `None` if no time is set.
#[inline(always)]
pub(crate) fn alloc_time_frame() -> Option<usize> {
    match FRAME.load(Relaxed) {
        0 => None,
        frame => Some(frame),
    }
}
