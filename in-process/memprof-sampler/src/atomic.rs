//! Atomics of the files that `loom/` tests under every interleaving of threads. The tests replace this module by loom's
//! atomics.

use core::sync::atomic::compiler_fence;
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Orders memory accesses after the preceding exchange. On x86-64 the exchange instruction is a full fence,
/// so only the compiler is restrained.
#[inline(always)]
pub(crate) fn fence_after_exchange() {
    compiler_fence(Ordering::SeqCst);
}
