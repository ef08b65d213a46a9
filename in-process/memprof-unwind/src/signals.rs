//! Signal masks of threads.
#![expect(unsafe_code, reason = "a system call")]

use core::arch::asm;

/// Guard that blocks all signals of the calling thread.
#[derive(Debug)]
pub(crate) struct BlockedSignals {
    /// The thread's original mask, in the kernel's format.
    before: u64,
}

const SIG_SETMASK: usize = 2;

impl BlockedSignals {
    /// Blocks all signals of the calling thread until the guard is dropped. `None` if the kernel refuses, for example
    /// because of a seccomp filter.
    pub(crate) fn block_all() -> Option<Self> {
        Some(Self {
            before: swap_signal_mask(u64::MAX)?,
        })
    }

    #[cfg(test)]
    pub(crate) fn were_all_blocked(&self) -> bool {
        self.before.count_ones() > 60
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        swap_signal_mask(self.before);
    }
}

/// Sets the signal mask of the calling thread, and returns the previous one; see sigprocmask(2). `None` if the kernel
/// refuses.
fn swap_signal_mask(mask: u64) -> Option<u64> {
    const RT_SIGPROCMASK: isize = 14;
    let mut before = 0_u64;
    let result: isize;
    // SAFETY: sigprocmask(2) reads one mask of 8 bytes and writes another.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") RT_SIGPROCMASK => result,
            in("rdi") SIG_SETMASK,
            in("rsi") &raw const mask,
            in("rdx") &raw mut before,
            in("r10") size_of::<u64>(),
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    (result == 0).then_some(before)
}
