//! Decides which allocations are sampled. A thread samples when its countdown of bytes expires. Each countdown is drawn
//! from an exponential distribution, so that no pattern of sizes is preferred.
#![expect(unsafe_code, reason = "a section of its own, and clock_gettime(2)")]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::process::getpid;

use crate::excluded_threads;
use crate::thread_pointer::{hash_thread_pointer, thread_pointer};

/// Number of bytes after which a thread checks again whether sampling is on.
const PARKED_BYTES: u64 = 1 << 20;

/// Number of countdowns in a process. Threads with the same hash share one. A race between them can lose counted bytes,
/// but cannot corrupt memory.
const COUNTDOWN_COUNT: usize = 1024;

/// Step of the sequence of seeds: 2^64 divided by the golden ratio, rounded to an odd number.
const SEED_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Sequence of seeds (`draw_seed`).
static SEEDS: AtomicU64 = AtomicU64::new(0);

/// Mean bytes between samples; 0 while sampling is stopped.
static INTERVAL: AtomicU64 = AtomicU64::new(0);

/// Countdowns by hash of the thread pointer. They are not thread-local variables, because for a library that is loaded
/// late the static TLS may have no room.
// All large tables share a section: a small variable between two of them would make a page of its own resident.
#[unsafe(link_section = ".bss.tables")]
static THREADS: [Countdown; COUNTDOWN_COUNT] = [const { Countdown::new() }; COUNTDOWN_COUNT];

/// One thread's countdown, in a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
struct Countdown {
    /// Bytes until the next sample.
    remaining: AtomicU64,
    /// State of xorshift64; 0 before the first draw.
    random: AtomicU64,
}

/// Returns the countdown of the calling thread. Other threads may share it.
#[inline(always)]
fn current_countdown() -> &'static Countdown {
    &THREADS[hash_thread_pointer(thread_pointer(), COUNTDOWN_COUNT.ilog2())]
}

/// Subtracts `bytes` from this thread's countdown to its next sample. Returns true if enough bytes remained: the
/// allocation then needs no sample. Otherwise the countdown has expired: returns false and subtracts nothing; the
/// caller must then call [`start_next_countdown`].
#[inline(always)]
pub(crate) fn count_down(bytes: usize) -> bool {
    let countdown = current_countdown();
    let (remaining, is_over) = countdown
        .remaining
        .load(Relaxed)
        .overflowing_sub(bytes as u64);
    if !is_over {
        countdown.remaining.store(remaining, Relaxed);
    }
    !is_over
}

/// Returns the number of bytes that this thread may still allocate before its countdown expires.
#[inline(always)]
pub(crate) fn remaining_bytes() -> u64 {
    current_countdown().remaining.load(Relaxed)
}

/// Starts the next countdown after [`count_down`] returned false. Returns whether to sample the allocation of `bytes`.
/// Returns false while sampling is stopped, in an excluded thread, and usually at a thread's first call, which draws
/// its first countdown.
#[cold]
#[inline(never)]
pub(crate) fn start_next_countdown(bytes: usize) -> bool {
    let countdown = current_countdown();
    let interval = INTERVAL.load(Relaxed);
    if interval == 0 {
        countdown.remaining.store(PARKED_BYTES, Relaxed);
        countdown.random.store(0, Relaxed);
        return false;
    }
    if countdown.random.load(Relaxed) == 0 {
        countdown.random.store(draw_seed(), Relaxed);
        // The expired countdown is from before the thread sampled, so it says nothing about this allocation: draw a new
        // one.
        let gap = countdown.draw_gap(interval);
        if let Some(remaining) = gap.checked_sub(bytes as u64) {
            countdown.remaining.store(remaining, Relaxed);
            return false;
        }
    }
    let gap = countdown.draw_gap(interval);
    countdown.remaining.store(gap, Relaxed);
    // An excluded thread only drops its sample. Parking it could cost samples of a program thread that shares the
    // countdown.
    !excluded_threads::is_this_thread_excluded()
}

/// Guard that pauses this thread's countdown, because nested allocations are part of one that was already counted.
#[derive(Debug)]
pub(crate) struct CountdownPause {
    countdown: &'static Countdown,
    remaining: u64,
}

/// More bytes than any call can allocate.
const PAUSED_BYTES: u64 = 1 << 62;

impl CountdownPause {
    /// Pauses the calling thread's countdown, so that no call takes a sample until the pause is dropped.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let countdown = current_countdown();
        let remaining = countdown.remaining.load(Relaxed);
        countdown.remaining.store(PAUSED_BYTES, Relaxed);
        Self {
            countdown,
            remaining,
        }
    }
}

/// Also runs while a C++ exception unwinds, because `operator new` throws.
impl Drop for CountdownPause {
    #[inline(always)]
    fn drop(&mut self) {
        self.countdown.remaining.store(self.remaining, Relaxed);
    }
}

/// Sets the mean bytes between samples for all threads; 0 stops sampling. Restarts all countdowns with new random
/// numbers.
pub(crate) fn set_interval(interval: u64) {
    INTERVAL.store(interval, Relaxed);
    restart_all_countdowns();
}

/// Restarts the countdowns in a forked child with random numbers of its own. Otherwise, children that run the same code
/// would all sample the same objects.
pub(crate) fn reset_in_child() {
    vary_seeds();
    restart_all_countdowns();
}

/// Restarts all countdowns: each expires at the next allocation, which then draws a new seed and a new countdown.
fn restart_all_countdowns() {
    for thread in &THREADS {
        thread.random.store(0, Relaxed);
        thread.remaining.store(0, Relaxed);
    }
}

/// Returns the mean bytes between samples; 0 while sampling is stopped.
pub(crate) fn interval() -> u64 {
    INTERVAL.load(Relaxed)
}

/// Advances the sequence of seeds by a number made from the clock and the process id. So later seeds differ from those
/// of other activations of sampling and of other processes.
pub(crate) fn vary_seeds() {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Not by rustix: it reads the vDSO where the kernel has mapped it, but valgrind runs a program without the vDSO.
    // SAFETY: clock_gettime(2) writes one `timespec`; every kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let nanoseconds = (time.tv_sec as u64).wrapping_mul(1_000_000_000) + time.tv_nsec as u64;
    let process = getpid().as_raw_nonzero().get() as u64;
    SEEDS.fetch_add(nanoseconds ^ process << 32, Relaxed);
}

/// Draws a seed for the calling thread's random numbers. The seed differs between threads, and between activations of
/// sampling. Reads no time stamp counter (RDTSC): the program may have forbidden the thread to do so (`PR_SET_TSC` of
/// prctl(2)).
fn draw_seed() -> u64 {
    let drawn = SEEDS.fetch_add(SEED_STEP, Relaxed);
    // splitmix64: neighbouring inputs give unrelated outputs.
    let mut seed = drawn.wrapping_add((thread_pointer() as u64).wrapping_mul(SEED_STEP));
    seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    // Never 0, which xorshift64 would keep for ever, and which marks a countdown without a seed.
    (seed ^ (seed >> 31)) | 1
}

impl Countdown {
    const fn new() -> Self {
        Self {
            remaining: AtomicU64::new(0),
            random: AtomicU64::new(0),
        }
    }

    /// Draws the number of bytes until the next sample, with mean `interval`, and advances the countdown's random
    /// numbers. Their state must be seeded already (not 0).
    fn draw_gap(&self, interval: u64) -> u64 {
        let state = xorshift(self.random.load(Relaxed));
        self.random.store(state, Relaxed);
        exponential_gap(state, interval)
    }
}

/// Returns the next state of the generator xorshift64; `state` is not 0.
fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// Converts a uniform `random` to a number of bytes that is exponentially distributed with mean `interval`.
fn exponential_gap(random: u64, interval: u64) -> u64 {
    // The middle of one of 2^53 equal parts of 0..1, so it is never 0.
    let uniform = ((random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    (-ln(uniform) * interval as f64) as u64
}

/// Returns the natural logarithm of a normal number above 0, with an error of at most 2e-6. libm is exact, but takes
/// three times as long.
fn ln(number: f64) -> f64 {
    const SQRT_HALF: u64 = core::f64::consts::FRAC_1_SQRT_2.to_bits();
    let bits = number.to_bits();
    let exponent = (bits.wrapping_sub(SQRT_HALF) as i64) >> 52;
    // The mantissa is between √½ and √2, where few terms of the series suffice: ln m = 2 artanh((m - 1) / (m + 1)).
    let mantissa = f64::from_bits(bits.wrapping_sub((exponent << 52) as u64));
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let sum = (square * (1.0 / 5.0) + 1.0 / 3.0) * square + 1.0;
    exponent as f64 * core::f64::consts::LN_2 + 2.0 * ratio * sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::excluded_threads::SamplerExclusion;

    #[test]
    fn gaps_of_many_draws_have_exponential_mean_and_tail() {
        const DRAWS: u64 = 1_000_000;
        const INTERVAL: u64 = 512 << 10;
        let (mut state, mut sum, mut long_gaps) = (draw_seed(), 0, 0);
        for _ in 0..DRAWS {
            state = xorshift(state);
            let gap = exponential_gap(state, INTERVAL);
            sum += gap;
            long_gaps += u64::from(gap > 3 * INTERVAL);
        }
        // Five standard errors: the deviation of the mean is the mean over √draws.
        let mean = sum as f64 / DRAWS as f64 / INTERVAL as f64;
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        let tail = long_gaps as f64 / DRAWS as f64;
        assert!((tail - libm::exp(-3.0)).abs() < 0.0011, "{tail}");
    }

    #[test]
    fn ln_of_random_numbers_equals_libm() {
        let mut state = 1;
        for _ in 0..100_000 {
            state = xorshift(state);
            let number = ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            let (own, exact) = (ln(number), libm::log(number));
            assert!((own - exact).abs() < 2e-6, "{number}: {own} {exact}");
        }
    }

    #[test]
    fn nested_allocation_is_not_counted() {
        set_interval(1 << 10);
        current_countdown().remaining.store(1000, Relaxed);
        let pause = CountdownPause::new();
        assert!(count_down(1 << 40));
        drop(pause);
        assert_eq!(current_countdown().remaining.load(Relaxed), 1000);
        assert!(!count_down(1001));
        // An excluded thread's countdown still runs, for the threads that share it.
        let excluded = SamplerExclusion::for_this_thread();
        assert!(!start_next_countdown(1 << 40));
        let remaining = current_countdown().remaining.load(Relaxed);
        assert!(remaining < 64 << 10, "{remaining}");
        drop(excluded);
        assert!(start_next_countdown(1 << 40));
        set_interval(0);
    }

    #[test]
    fn gap_of_extreme_draws_is_bounded() {
        assert!(exponential_gap(0, 16 << 20) < 40 * (16 << 20));
        assert_eq!(exponential_gap(u64::MAX, 16 << 20), 0);
    }
}
