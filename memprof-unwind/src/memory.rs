//! Reading the stack: only where the kernel says that it can be read.
#![expect(unsafe_code, reason = "a system call, and words of the stack")]

use core::arch::asm;
use core::ops::Range;

use crate::walk::Memory;

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

/// The words of a stack from a stack pointer on, as far as they can be read.
#[derive(Debug)]
pub struct Stack {
    /// Every aligned word from here to `end` can be read.
    start: usize,
    /// The end of a page.
    end: usize,
    /// So can every one from here to `known_end`.
    known: usize,
    known_end: usize,
}

impl Stack {
    /// The stack on which the caller runs, from `sp` on. What is `known` to be readable is not
    /// asked for again.
    ///
    /// # Safety
    /// `sp` lies in memory that can be read, and so does all that is known.
    #[inline(always)]
    pub unsafe fn from(sp: usize, known: &Range<usize>) -> Self {
        let end = if known.contains(&sp) {
            known.end
        } else {
            page_of(sp) + PAGE
        };
        Self {
            start: sp,
            end,
            known: known.start,
            known_end: known.end,
        }
    }

    /// Takes in the page with `address`: of the same stack when it is the next one, else of
    /// another, as after a signal handler with a stack of its own.
    #[cold]
    #[inline(never)]
    fn take_in(&mut self, address: usize) -> Option<()> {
        let page = page_of(address);
        let is_known = (self.known..self.known_end).contains(&page);
        if !is_known && !is_readable(page) {
            return None;
        }
        if page != self.end {
            self.start = page;
        }
        self.end = if is_known {
            self.known_end
        } else {
            page.checked_add(PAGE)?
        };
        Some(())
    }

    /// The end of what was read last.
    pub(crate) fn end(&self) -> usize {
        self.end
    }
}

impl Memory for Stack {
    /// None also where the address is not aligned.
    #[inline(always)]
    fn word(&mut self, address: usize) -> Option<usize> {
        if address % WORD != 0 {
            return None;
        }
        if !(self.start..self.end).contains(&address) {
            self.take_in(address)?;
        }
        // SAFETY: aligned, so within one page; the kernel read it just now, or `from` was promised
        // that it can be read.
        Some(unsafe { (address as *const usize).read_volatile() })
    }
}

/// Where the page with `address` starts.
pub(crate) fn page_of(address: usize) -> usize {
    address & !(PAGE - 1)
}
