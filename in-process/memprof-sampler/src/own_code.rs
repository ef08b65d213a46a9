//! Address range of this library's code. The sampler recognizes its own calls and stack frames by it.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// First address of the library's segments; 0 until it is known.
static CODE_START: AtomicUsize = AtomicUsize::new(0);
/// End of the library's segments.
static CODE_END: AtomicUsize = AtomicUsize::new(0);

/// Returns the address range of memprof's own segments. Empty until `GotSlots::find` has run.
pub(crate) fn own_code() -> Range<usize> {
    CODE_START.load(Relaxed)..CODE_END.load(Relaxed)
}

/// Stores the address range of this library's segments.
pub(crate) fn set_own_code(code: &Range<usize>) {
    CODE_START.store(code.start, Relaxed);
    CODE_END.store(code.end, Relaxed);
}
