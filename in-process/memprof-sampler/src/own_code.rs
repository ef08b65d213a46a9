//! Address range of this library's code, by which its own calls and frames are recognized.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Returns the range, empty until `GotSlots::find` has run.
pub(crate) fn own_code() -> Range<usize> {
    START.load(Relaxed)..END.load(Relaxed)
}

/// Stores the range.
pub(crate) fn set_own_code(code: &Range<usize>) {
    START.store(code.start, Relaxed);
    END.store(code.end, Relaxed);
}
