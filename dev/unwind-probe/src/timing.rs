//! Duration of both walks, in ticks of the time stamp counter.

use std::arch::x86_64::_rdtsc;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memprof_unwind::HOOKS;

use crate::allocator_walker;

/// Walks that take longer, about 0.2 ms, were interrupted and do not count.
const MAX_TICKS: u64 = 500_000;

/// Number and duration of the walks of one walker.
struct WalkTimes {
    walks: AtomicU64,
    ticks: AtomicU64,
}

impl WalkTimes {
    const fn new() -> Self {
        Self {
            walks: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
        }
    }
}

static DRAW_COUNT: AtomicU64 = AtomicU64::new(0);
static MEMPROF_TIMES: WalkTimes = WalkTimes::new();
static ALLOCATOR_TIMES: WalkTimes = WalkTimes::new();

/// Walks the stack by one of both walkers at random, and adds the time that it took, unless that is [`MAX_TICKS`] or
/// more.
pub(crate) unsafe extern "C" fn time_one_walk(
    frames: *mut *mut c_void,
    count: *mut u32,
    capacity: u32,
) {
    // The choice is pseudo-random, so that neither walker always gets the same samples.
    let drawn = DRAW_COUNT
        .fetch_add(1, Relaxed)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (walker, times) = if drawn >> 63 == 0 {
        (HOOKS[0].entry_function(), &MEMPROF_TIMES)
    } else {
        (allocator_walker(), &ALLOCATOR_TIMES)
    };
    // SAFETY: every x86-64 processor has the instruction rdtsc.
    let start = unsafe { _rdtsc() };
    // SAFETY: jemalloc passed these arguments for its walker.
    unsafe { walker(frames, count, capacity) };
    // SAFETY: every x86-64 processor has the instruction rdtsc.
    let ticks = unsafe { _rdtsc() } - start;
    if ticks < MAX_TICKS {
        times.walks.fetch_add(1, Relaxed);
        times.ticks.fetch_add(ticks, Relaxed);
    }
}

/// Returns the mean ticks of a walk by either walker, as two fields of a JSON object.
pub(crate) fn json_fields() -> String {
    let mean = |times: &WalkTimes| {
        times.ticks.load(Relaxed) as f64 / times.walks.load(Relaxed).max(1) as f64
    };
    format!(
        "\"memprof_ticks\":{:.1},\"allocator_ticks\":{:.1}",
        mean(&MEMPROF_TIMES),
        mean(&ALLOCATOR_TIMES)
    )
}
