//! When a sample was taken, as a frame above its outermost one: allocators keep samples of one stack and
//! different last frames apart, so a profile tells how old what it shows is.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The upper 24 bits: no address that a processor accepts, and the kind of frame that tells a time.
const KIND: usize = 0x4d_5002;

/// What every stack ends in from now on; 0 for nothing.
static FRAME: AtomicUsize = AtomicUsize::new(0);

/// Lets each stack end in a frame that tells this second since 1970, or in none.
pub fn set_alloc_time(second: Option<u32>) {
    // The lowest bit is set, because tools show a caller as the byte before its return address: of both forms
    // the bits above it are the same.
    let frame = second.map_or(0, |second| KIND << 40 | (second as usize) << 1 | 1);
    FRAME.store(frame, Relaxed);
}

/// The frame to end a stack in.
#[inline(always)]
pub(crate) fn alloc_time_frame() -> Option<usize> {
    match FRAME.load(Relaxed) {
        0 => None,
        frame => Some(frame),
    }
}
