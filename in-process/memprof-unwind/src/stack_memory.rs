//! Reads stack memory after the kernel has confirmed that it is readable.
#![expect(unsafe_code, reason = "a system call, and words of the stack")]

use core::arch::asm;
use core::ops::Range;

use crate::walk::StackReader;

/// Smallest page size of x86-64, in bytes.
pub(crate) const PAGE: usize = 4096;
const WORD: usize = size_of::<usize>();

/// Returns whether the page that contains `address` is readable at the moment.
///
/// Calls `rt_sigprocmask(-1, page)`, which is an invalid way to change the signal mask. The kernel first copies the
/// mask, which fails with EFAULT if the page is unreadable, and then fails with EINVAL. The call changes nothing, needs
/// no descriptor, and takes no lock of the address space.
pub fn is_readable(address: usize) -> bool {
    const RT_SIGPROCMASK: isize = 14;
    const MASK_SIZE: usize = 8;
    const EINVAL: isize = 22;
    let result: isize;
    // SAFETY: sigprocmask(2): with an unknown `how`, it changes nothing.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") RT_SIGPROCMASK => result,
            in("rdi") -1_isize,
            in("rsi") address & !(PAGE - 1),
            in("rdx") 0,
            in("r10") MASK_SIZE,
            out("rcx") _,
            out("r11") _,
            options(nostack, readonly),
        );
    }
    result == -EINVAL
}

/// Readable words of a stack from a stack pointer on.
#[derive(Debug)]
pub struct ReadableStack {
    /// Every aligned word from here to `end`, the end of a page, is readable.
    start: usize,
    end: usize,
    /// Every aligned word from here to `known_end` is also readable.
    known: usize,
    known_end: usize,
}

impl ReadableStack {
    /// Creates a reader of the caller's stack from `sp` on. Memory in `known` is not checked again.
    ///
    /// # Safety
    /// The word at `sp` and all memory in `known` are readable.
    #[inline(always)]
    pub unsafe fn new(sp: usize, known: &Range<usize>) -> Self {
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

    /// Checks that the page that contains `address` is readable, unless that is known. If the page follows the readable
    /// range, extends the range by it. Otherwise begins a new range with the page, for example when a walk leaves a
    /// signal handler's own stack. `None` if the page is unreadable.
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

    /// Returns the end of the readable range that was used last.
    pub(crate) fn readable_end(&self) -> usize {
        self.end
    }
}

impl StackReader for ReadableStack {
    /// Returns the word at an address. `None` if the address is unaligned or its page is unreadable.
    #[inline(always)]
    fn read_word(&mut self, address: usize) -> Option<usize> {
        if !address.is_multiple_of(WORD) {
            return None;
        }
        if !(self.start..self.end).contains(&address) {
            self.extend_to(address)?;
        }
        // SAFETY: an aligned word is within one page. The kernel has just read that page, or the caller of `new`
        // guaranteed that it is readable.
        Some(unsafe { (address as *const usize).read_volatile() })
    }
}

/// Returns the start of the page that contains `address`.
pub(crate) fn page_of(address: usize) -> usize {
    address & !(PAGE - 1)
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    /// Maps pages of which every second one, from the first, is readable. Never unmaps them.
    fn map_striped(pages: usize) -> usize {
        // SAFETY: mmap(2): a new mapping at an address that the kernel chooses.
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
            // SAFETY: mprotect(2): a page of that mapping, to which no reference exists.
            let rc = unsafe { libc::mprotect(page, PAGE, libc::PROT_NONE) };
            assert_eq!(rc, 0);
        }
        start as usize
    }

    #[test]
    fn word_of_unreadable_page_is_none() {
        let start = map_striped(4);
        // SAFETY: `start` is in the first page, which is readable; the known range is empty.
        let mut stack = unsafe { ReadableStack::new(start + 64, &(0..0)) };
        let mut check = |offset, readable| {
            let word = stack.read_word(start.wrapping_add(offset));
            assert_eq!(word.is_some(), readable, "{offset:#x}");
        };
        check(64, true);
        check(PAGE - WORD, true);
        check(PAGE, false);
        check(PAGE - 4, false);
        check(2 * PAGE - WORD, false);
        check(2 * PAGE, true);
        check(3 * PAGE, false);
        // The range has moved to another page meanwhile; the first page is checked again.
        check(0, true);
        check(start.wrapping_neg(), false);
        check(usize::MAX - WORD + 1 - start, false);
    }

    #[test]
    fn known_memory_is_not_checked() {
        let start = map_striped(4);
        let known = start + 2 * PAGE..start + 3 * PAGE;
        // SAFETY: the first page and the third one are readable.
        let mut stack = unsafe { ReadableStack::new(start, &known) };
        assert!(stack.read_word(start + 2 * PAGE).is_some());
        assert_eq!(stack.readable_end(), start + 3 * PAGE);
        assert_eq!(stack.read_word(start + 3 * PAGE), None);
    }
}
