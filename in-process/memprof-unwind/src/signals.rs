//! Signals that wait.
#![expect(unsafe_code, reason = "a system call")]

use core::arch::asm;

/// All signals of the calling thread wait, until it is dropped.
#[derive(Debug)]
pub(crate) struct BlockedSignals {
    /// The mask of the thread before, as the kernel has it.
    before: u64,
}

const SIG_SETMASK: usize = 2;

impl BlockedSignals {
    /// `None` if the kernel refuses: a seccomp filter.
    pub(crate) fn all() -> Option<Self> {
        Some(Self {
            before: set_mask(u64::MAX)?,
        })
    }

    #[cfg(test)]
    pub(crate) fn were_all(&self) -> bool {
        self.before.count_ones() > 60
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Sets the mask and returns the one before. `None` if the kernel refuses; see sigprocmask(2).
fn set_mask(mask: u64) -> Option<u64> {
    const RT_SIGPROCMASK: isize = 14;
    let mut before = 0_u64;
    let answer: isize;
    // SAFETY: sigprocmask(2): reads one mask of 8 bytes, and writes the other.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") RT_SIGPROCMASK => answer,
            in("rdi") SIG_SETMASK,
            in("rsi") &raw const mask,
            in("rdx") &raw mut before,
            in("r10") size_of::<u64>(),
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    (answer == 0).then_some(before)
}
