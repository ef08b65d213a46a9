//! The atomics of what `loom/` tries in every order in which threads may meet; it has others in their place.

use core::sync::atomic::compiler_fence;
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Nothing behind it comes before the exchange that precedes it. On x86-64 the exchange sees to that.
#[inline(always)]
pub(crate) fn fence_after_exchange() {
    compiler_fence(Ordering::SeqCst);
}
