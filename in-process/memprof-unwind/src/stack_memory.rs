//! Reading the stack: only where the kernel says that it can be read.
#![expect(unsafe_code, reason = "a system call, and words of the stack")]

use core::arch::asm;
use core::ops::Range;

use crate::walk::StackReader;

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
pub struct ReadableStack {
    /// Every aligned word from here to `end` can be read.
    start: usize,
    /// The end of a page.
    end: usize,
    /// So can every one from here to `known_end`.
    known: usize,
    known_end: usize,
}

impl ReadableStack {
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
    fn extend_to(&mut self, address: usize) -> Option<()> {
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
    pub(crate) fn read_end(&self) -> usize {
        self.end
    }
}

impl StackReader for ReadableStack {
    /// None also where the address is not aligned.
    #[inline(always)]
    fn word(&mut self, address: usize) -> Option<usize> {
        if !address.is_multiple_of(WORD) {
            return None;
        }
        if !(self.start..self.end).contains(&address) {
            self.extend_to(address)?;
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

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    /// Pages that can be read and pages that cannot, in turn; never unmapped.
    fn striped(pages: usize) -> usize {
        // SAFETY: mmap(2): a fresh mapping.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                pages * PAGE,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        for page in (1..pages).step_by(2) {
            let page = start.wrapping_byte_add(page * PAGE);
            // SAFETY: mprotect(2): a page of that mapping, which nobody uses.
            let rc = unsafe { libc::mprotect(page, PAGE, libc::PROT_NONE) };
            assert_eq!(rc, 0);
        }
        start as usize
    }

    #[test]
    fn only_what_can_be_read_is_read() {
        let start = striped(4);
        // SAFETY: in the first page; nothing is known.
        let mut stack = unsafe { ReadableStack::from(start + 64, &(0..0)) };
        let mut check = |offset, readable| {
            let word = stack.word(start.wrapping_add(offset));
            assert_eq!(word.is_some(), readable, "{offset:#x}");
        };
        check(64, true);
        check(PAGE - WORD, true);
        check(PAGE, false);
        check(PAGE - 4, false);
        check(2 * PAGE - WORD, false);
        check(2 * PAGE, true);
        check(3 * PAGE, false);
        // Another stack was taken in meanwhile; back again.
        check(0, true);
        check(start.wrapping_neg(), false);
        check(usize::MAX - WORD + 1 - start, false);
    }

    #[test]
    fn what_is_known_is_not_asked_for() {
        let start = striped(4);
        let known = start + 2 * PAGE..start + 3 * PAGE;
        // SAFETY: in the first page; the third one can be read.
        let mut stack = unsafe { ReadableStack::from(start, &known) };
        assert!(stack.word(start + 2 * PAGE).is_some());
        assert_eq!(stack.read_end(), start + 3 * PAGE);
        assert_eq!(stack.word(start + 3 * PAGE), None);
    }
}
