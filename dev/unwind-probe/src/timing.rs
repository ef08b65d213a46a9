//! How long the two walks take, in ticks of the processor's clock.

use std::arch::x86_64::_rdtsc;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memprof_unwind::HOOKS;

use crate::theirs;

/// Longer, and the thread was interrupted: about 0.2 ms.
const INTERRUPTED: u64 = 500_000;

struct Clock {
    walks: AtomicU64,
    ticks: AtomicU64,
}

impl Clock {
    const fn new() -> Self {
        Self {
            walks: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
        }
    }
}

static DRAWN: AtomicU64 = AtomicU64::new(0);
static OURS: Clock = Clock::new();
static THEIRS: Clock = Clock::new();

pub(crate) unsafe extern "C" fn walk(frames: *mut *mut c_void, count: *mut u32, room: u32) {
    // By chance, so that neither always meets the same samples.
    let drawn = DRAWN
        .fetch_add(1, Relaxed)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (walker, clock) = if drawn >> 63 == 0 {
        (HOOKS[0].entry(), &OURS)
    } else {
        (theirs(), &THEIRS)
    };
    // SAFETY: x86-64 has it.
    let begun = unsafe { _rdtsc() };
    // SAFETY: with what jemalloc passed.
    unsafe { walker(frames, count, room) };
    // SAFETY: x86-64 has it.
    let ticks = unsafe { _rdtsc() } - begun;
    if ticks < INTERRUPTED {
        clock.walks.fetch_add(1, Relaxed);
        clock.ticks.fetch_add(ticks, Relaxed);
    }
}

/// Fields of a JSON object.
pub(crate) fn report() -> String {
    let mean =
        |clock: &Clock| clock.ticks.load(Relaxed) as f64 / clock.walks.load(Relaxed).max(1) as f64;
    format!(
        "\"our_ticks\":{:.1},\"their_ticks\":{:.1}",
        mean(&OURS),
        mean(&THEIRS)
    )
}
