//! When an allocation is sampled: after a number of bytes that is drawn anew for each thread and
//! sample, exponentially distributed, so that no pattern of sizes is preferred.
#![expect(unsafe_code, reason = "the time stamp counter")]

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::excluded_threads;
use crate::thread_pointer::{hash_of, thread_pointer};

/// Bytes after which a thread looks again whether sampling is on.
const PARKED: u64 = 1 << 20;

/// More threads than this share counters: a race then loses bytes of a countdown, never memory.
const COUNTDOWNS: usize = 1024;

/// Mean bytes between samples; 0 while nothing is sampled.
static INTERVAL: AtomicU64 = AtomicU64::new(0);

/// By thread pointer. Not thread-local: a library that is loaded late may find no room for it.
// Among the other tables: what lies between two of them would have a page of its own as soon as it is written.
#[unsafe(link_section = ".bss.tables")]
static THREADS: [Countdown; COUNTDOWNS] = [const { Countdown::new() }; COUNTDOWNS];

/// One thread's, alone in its line of the cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct Countdown {
    /// Bytes that pass before the next sample.
    left: AtomicU64,
    /// The state of xorshift64; 0 before the first draw.
    random: AtomicU64,
}

#[inline(always)]
fn this_thread() -> &'static Countdown {
    &THREADS[hash_of(thread_pointer(), COUNTDOWNS.ilog2())]
}

/// Counts an allocation. True: it is not sampled. False: ask [`is_due`].
#[inline(always)]
pub(crate) fn count_down(bytes: usize) -> bool {
    let mine = this_thread();
    let (left, is_over) = mine.left.load(Relaxed).overflowing_sub(bytes as u64);
    if !is_over {
        mine.left.store(left, Relaxed);
    }
    !is_over
}

/// Whether an allocation that did not pass is sampled.
#[cold]
#[inline(never)]
pub(crate) fn is_due(bytes: usize) -> bool {
    let mine = this_thread();
    let interval = INTERVAL.load(Relaxed);
    if interval == 0 {
        mine.left.store(PARKED, Relaxed);
        mine.random.store(0, Relaxed);
        return false;
    }
    if mine.random.load(Relaxed) == 0 {
        mine.random.store(seed(), Relaxed);
        // The countdown of a thread that did not sample says nothing about this allocation.
        let gap = mine.draw(interval);
        if let Some(left) = gap.checked_sub(bytes as u64) {
            mine.left.store(left, Relaxed);
            return false;
        }
    }
    let gap = mine.draw(interval);
    mine.left.store(gap, Relaxed);
    // Only its sample is left out: a thread of the program may share the countdown, and would miss its own.
    !excluded_threads::is_excluded()
}

/// As long as it lives, nothing that this thread allocates counts: it is part of an allocation that was counted.
#[derive(Debug)]
pub(crate) struct CountdownPause {
    mine: &'static Countdown,
    left: u64,
}

/// More than anybody allocates in one call.
const HELD: u64 = 1 << 62;

impl CountdownPause {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let mine = this_thread();
        let left = mine.left.load(Relaxed);
        mine.left.store(HELD, Relaxed);
        Self { mine, left }
    }
}

/// Also where C++ throws: `operator new` does.
impl Drop for CountdownPause {
    #[inline(always)]
    fn drop(&mut self) {
        self.mine.left.store(self.left, Relaxed);
    }
}

/// Sets the mean bytes between samples for all threads; 0 ends sampling.
pub(crate) fn set_interval(interval: u64) {
    INTERVAL.store(interval, Relaxed);
    for thread in &THREADS {
        thread.random.store(0, Relaxed);
        thread.left.store(0, Relaxed);
    }
}

pub(crate) fn interval() -> u64 {
    INTERVAL.load(Relaxed)
}

/// Differs between threads, and for each activation.
fn seed() -> u64 {
    // SAFETY: every x86-64 has a time-stamp counter.
    let time = unsafe { _rdtsc() };
    // splitmix64, which never gives two neighbours alike.
    let mut seed = time.wrapping_add((thread_pointer() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (seed ^ (seed >> 31)) | 1
}

impl Countdown {
    const fn new() -> Self {
        Self {
            left: AtomicU64::new(0),
            random: AtomicU64::new(0),
        }
    }

    fn draw(&self, interval: u64) -> u64 {
        let state = xorshift(self.random.load(Relaxed));
        self.random.store(state, Relaxed);
        exponential_gap(state, interval)
    }
}

fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// Exponentially distributed with that mean, for a uniform `random`.
fn exponential_gap(random: u64, interval: u64) -> u64 {
    // In the middle of one of 2^53 parts of 0..1, so never 0.
    let uniform = ((random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    (-ln(uniform) * interval as f64) as u64
}

/// The natural logarithm of a normal number above 0, to 2e-6: libm's last digits take three times as long.
fn ln(number: f64) -> f64 {
    const SQRT_HALF: u64 = core::f64::consts::FRAC_1_SQRT_2.to_bits();
    let bits = number.to_bits();
    let exponent = (bits.wrapping_sub(SQRT_HALF) as i64) >> 52;
    // From √½ to √2, where the series below ends soon: ln m = 2 artanh((m - 1) / (m + 1)).
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
    fn gaps_have_the_mean_and_the_tail_of_an_exponential_distribution() {
        const DRAWS: u64 = 1_000_000;
        const INTERVAL: u64 = 512 << 10;
        let (mut state, mut sum, mut beyond) = (seed(), 0, 0);
        for _ in 0..DRAWS {
            state = xorshift(state);
            let gap = exponential_gap(state, INTERVAL);
            sum += gap;
            beyond += u64::from(gap > 3 * INTERVAL);
        }
        // Five standard errors: the deviation of the mean is the mean over √draws.
        let mean = sum as f64 / DRAWS as f64 / INTERVAL as f64;
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        let tail = beyond as f64 / DRAWS as f64;
        assert!((tail - libm::exp(-3.0)).abs() < 0.0011, "{tail}");
    }

    #[test]
    fn a_logarithm_is_that_of_libm() {
        let mut state = 1;
        for _ in 0..100_000 {
            state = xorshift(state);
            let number = ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            let (ours, theirs) = (ln(number), libm::log(number));
            assert!((ours - theirs).abs() < 2e-6, "{number}: {ours} {theirs}");
        }
    }

    #[test]
    fn what_is_allocated_within_an_allocation_does_not_count() {
        set_interval(1 << 10);
        this_thread().left.store(1000, Relaxed);
        let held = CountdownPause::new();
        assert!(count_down(1 << 40));
        drop(held);
        assert_eq!(this_thread().left.load(Relaxed), 1000);
        assert!(!count_down(1001));
        // The countdown of an excluded thread goes on for those that share it.
        let excluded = SamplerExclusion::this_thread();
        assert!(!is_due(1 << 40));
        let left = this_thread().left.load(Relaxed);
        assert!(left < 64 << 10, "{left}");
        drop(excluded);
        assert!(is_due(1 << 40));
        set_interval(0);
    }

    #[test]
    fn no_draw_is_endless() {
        assert!(exponential_gap(0, 16 << 20) < 40 * (16 << 20));
        assert_eq!(exponential_gap(u64::MAX, 16 << 20), 0);
    }
}
