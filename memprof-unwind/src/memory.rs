//! Reading the stack: only where the kernel says that it can be read.
#![expect(unsafe_code, reason = "a system call, and words of the stack")]

use core::arch::asm;

/// No page of x86-64 is smaller.
pub(crate) const PAGE: usize = 4096;
const WORD: usize = size_of::<usize>();

/// Whether the page with `address` can be read now.
///
/// Asks the kernel to change the signal mask in no known way (`rt_sigprocmask(-1, page)`): it
/// copies the mask first, which fails with EFAULT where it cannot be read, and then refuses with
/// EINVAL. Nothing is changed, no descriptor is needed, no lock of the address space is taken.
pub fn is_readable(address: usize) -> bool {
    const RT_SIGPROCMASK: isize = 14;
    const MASK_SIZE: usize = 8;
    const EINVAL: isize = 22;
    let answer: isize;
    // SAFETY: sigprocmask(2): with an unknown `how` nothing is changed.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") RT_SIGPROCMASK => answer,
            in("rdi") -1_isize,
            in("rsi") address & !(PAGE - 1),
            in("rdx") 0,
            in("r10") MASK_SIZE,
            out("rcx") _,
            out("r11") _,
            options(nostack, readonly),
        );
    }
    answer == -EINVAL
}

/// The words around a stack pointer, read page after page as far as they can be.
#[derive(Debug)]
pub struct Stack {
    /// Whole words from here to `end` can be read.
    start: usize,
    end: usize,
}

impl Stack {
    /// The stack on which the caller runs, from `sp` on.
    ///
    /// # Safety
    /// `sp` lies in memory that can be read, and stays so while this lives.
    pub unsafe fn from(sp: usize) -> Self {
        Self {
            start: sp,
            end: (sp | (PAGE - 1)) + 1,
        }
    }

    /// The word at an address; None where it cannot be read, or is not aligned.
    #[inline(always)]
    pub fn word(&mut self, address: usize) -> Option<usize> {
        if address % WORD != 0 {
            return None;
        }
        // An aligned word does not cross the end, which is a page's.
        if !(self.start..self.end).contains(&address) {
            self.move_to(address)?;
        }
        // SAFETY: the kernel just read this page, or the stack's owner runs on it.
        Some(unsafe { (address as *const usize).read_volatile() })
    }

    /// Takes in the page with `address`: of the same stack when it is the next one, else of
    /// another, as after a signal handler with a stack of its own.
    #[cold]
    fn move_to(&mut self, address: usize) -> Option<()> {
        if !is_readable(address) {
            return None;
        }
        let page = address & !(PAGE - 1);
        if page != self.end {
            self.start = page;
        }
        self.end = page.checked_add(PAGE)?;
        Some(())
    }
}
