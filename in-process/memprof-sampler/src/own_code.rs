//! The code of this library: where its own calls and its own frames lie.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Empty before the slots were looked for.
pub(crate) fn own_code() -> Range<usize> {
    START.load(Relaxed)..END.load(Relaxed)
}

pub(crate) fn set_own_code(code: &Range<usize>) {
    START.store(code.start, Relaxed);
    END.store(code.end, Relaxed);
}
