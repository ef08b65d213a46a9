//! Settings that memprof's threads inherit from a thread of the program, and change for themselves. A program may
//! forbid a thread instructions and memory: `prctl(PR_SET_TSC)` forbids RDTSC, with which the C library reads most
//! clocks, `arch_prctl(2)` with `ARCH_SET_CPUID` forbids CPUID, and the rights of protection keys (pkeys(7)) forbid
//! memory. A thread that does it all the same ends the process by a SIGSEGV.
#![expect(unsafe_code, reason = "prctl(2), and the rights of protection keys")]

use crate::privileges::has_no_seccomp_filter;

/// Delay by which the kernel may join the wake-ups of a thread, in nanoseconds, unless the program has set another one:
/// it may be minutes.
const DEFAULT_TIMER_SLACK: libc::c_ulong = 50_000;

/// Allows the calling thread, which must be memprof's, to execute RDTSC, and resets its timer slack, so that it wakes
/// in time: its creator may be a thread of the program with other settings. Does nothing if the thread has a seccomp
/// filter, which could end the process for these system calls.
pub(crate) fn reset_inherited_settings() {
    if has_no_seccomp_filter() {
        // SAFETY: prctl(2) with numbers. The setting is the thread's own.
        unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) };
        // SAFETY: prctl(2) with numbers. The delay is the thread's own.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, DEFAULT_TIMER_SLACK) };
    }
}

/// Detects the features of the processor, and caches them for threads that may not execute CPUID. Rust's standard
/// library detects and caches all features at the first query for any. Call this while the library is being loaded.
#[cfg(target_arch = "x86_64")]
pub fn detect_processor_features() {
    std::hint::black_box(std::is_x86_feature_detected!("avx2"));
    key_support::has_protection_keys();
}

/// Does nothing: a program can forbid CPUID only on x86-64.
#[cfg(not(target_arch = "x86_64"))]
pub fn detect_processor_features() {}

/// Gives the calling thread, which must be memprof's, the right to all memory with protection keys: the program's
/// allocator may have its heap there. Uses no memory but the stack.
pub(crate) fn allow_all_protection_keys() {
    #[cfg(target_arch = "x86_64")]
    if key_support::has_protection_keys() {
        // SAFETY: the kernel has enabled protection keys.
        unsafe { key_support::allow_all_access() };
    }
}

/// Protection keys of x86-64.
#[cfg(target_arch = "x86_64")]
mod key_support {
    use std::arch::asm;
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// Whether the kernel has enabled protection keys: [`UNKNOWN`], [`ABSENT`] or [`PRESENT`].
    static KEYS: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const ABSENT: u8 = 1;
    const PRESENT: u8 = 2;
    /// Bit of ecx of CPUID's leaf 7, OSPKE (Intel SDM, volume 2, CPUID).
    const OSPKE: u32 = 1 << 4;

    /// Returns whether the kernel has enabled protection keys. Executes CPUID at the first call.
    pub(super) fn has_protection_keys() -> bool {
        if KEYS.load(Relaxed) == UNKNOWN {
            let [highest_leaf, _] = cpuid(0);
            let is_enabled = highest_leaf >= 7 && cpuid(7)[1] & OSPKE != 0;
            KEYS.store(if is_enabled { PRESENT } else { ABSENT }, Relaxed);
        }
        KEYS.load(Relaxed) == PRESENT
    }

    /// Executes CPUID for a leaf, and returns eax and ecx. The standard library's function is unsafe in some of the
    /// supported releases of Rust, and safe in others.
    fn cpuid(leaf: u32) -> [u32; 2] {
        let (eax, ecx);
        // SAFETY: all processors of this architecture have the instruction. It writes four registers, of which rbx,
        // which the compiler keeps for itself, is restored.
        unsafe {
            asm!(
                "mov {saved:r}, rbx",
                "cpuid",
                "mov rbx, {saved:r}",
                saved = out(reg) _,
                inout("eax") leaf => eax,
                inout("ecx") 0 => ecx,
                out("edx") _,
                options(nostack),
            );
        }
        [eax, ecx]
    }

    /// Sets PKRU, the calling thread's rights, to 0, which allows all access.
    ///
    /// # Safety
    /// The kernel has enabled protection keys.
    pub(super) unsafe fn allow_all_access() {
        // SAFETY: the caller promises that the instruction exists. It needs zeros in ecx and edx.
        unsafe { asm!("wrpkru", in("eax") 0, in("ecx") 0, in("edx") 0, options(nostack)) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use crate::{coarse_monotonic_time, coarse_wall_time};

    /// Setting of the calling thread.
    fn time_stamps() -> i32 {
        let mut setting = 0;
        // SAFETY: prctl(2) writes one number to `setting`.
        let result = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut setting) };
        assert_eq!(result, 0);
        setting
    }

    #[test]
    fn thread_of_memprof_may_execute_what_its_creator_may_not() {
        let test = thread::spawn(|| {
            // SAFETY: prctl(2) with numbers. The thread executes no RDTSC until it may again.
            unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) };
            let (before, wall) = (coarse_monotonic_time(), coarse_wall_time());
            let (sender, settings) = mpsc::channel();
            let own = crate::spawn(c"memprof-test", move |_| {
                sender.send((time_stamps(), Instant::now())).unwrap();
            });
            own.unwrap().join();
            let (own_setting, _now) = settings.try_recv().unwrap();
            let setting = time_stamps();
            let (after, later) = (coarse_monotonic_time(), coarse_wall_time());
            // SAFETY: prctl(2) with numbers.
            unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) };
            assert_eq!(setting, libc::PR_TSC_SIGSEGV);
            assert_eq!(own_setting, libc::PR_TSC_ENABLE);
            assert!(after >= before && later >= wall);
        });
        test.join().unwrap();
    }
}
