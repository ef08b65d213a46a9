//! The clocks and the constants of the system, by the C library's functions. rustix reads the vDSO where the kernel has
//! mapped it, but it need not be there: valgrind runs a program without it.
#![expect(unsafe_code, reason = "clock_gettime(2) and sysconf(3)")]

use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time of the monotonic clock at its last tick; the kernel advances it every 1 to 10 ms. Threads of the
/// program may call this, even if they may not execute RDTSC: vdso(7) reads this clock without it.
pub fn coarse_monotonic_time() -> Duration {
    read_clock(libc::CLOCK_MONOTONIC_COARSE)
}

/// Returns the time of the wall clock at its last tick; the kernel advances it every 1 to 10 ms. Threads of the program
/// may call this, even if they may not execute RDTSC.
pub fn coarse_wall_time() -> SystemTime {
    UNIX_EPOCH + read_clock(libc::CLOCK_REALTIME_COARSE)
}

/// Returns the time since boot, suspension included.
pub fn boot_time() -> Duration {
    read_clock(libc::CLOCK_BOOTTIME)
}

/// Returns the size of a page in bytes.
pub fn page_size() -> usize {
    // SAFETY: sysconf(3) takes a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Linux on x86-64 has no other size.
    usize::try_from(size).unwrap_or(4096)
}

/// Returns the ticks per second in which /proc counts.
pub fn clock_ticks_per_second() -> u64 {
    // SAFETY: sysconf(3) takes a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    // USER_HZ is 100 on all common architectures.
    u64::try_from(ticks)
        .ok()
        .filter(|&ticks| ticks > 0)
        .unwrap_or(100)
}

/// Returns the time of a clock that every kernel has. A time before its epoch becomes 0.
fn read_clock(clock: libc::clockid_t) -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: clock_gettime(2) writes one `timespec`. It does not fail for these clocks.
    unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) };
    // SAFETY: zeros, or written by clock_gettime(2): all are valid.
    let time = unsafe { time.assume_init() };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn times_and_constants_are_those_of_the_system() {
        let uptime = fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let later = boot_time().as_secs_f64();
        assert!(
            (uptime - 0.02..uptime + 5.0).contains(&later),
            "{uptime} {later}"
        );
        let tick = coarse_wall_time();
        let age = SystemTime::now().duration_since(tick).unwrap();
        assert!(age < Duration::from_secs(1), "{age:?}");
        assert!(page_size().is_power_of_two() && page_size() >= 4096);
        assert!(clock_ticks_per_second() >= 100);
    }
}
