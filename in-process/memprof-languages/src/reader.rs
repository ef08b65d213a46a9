//! Memory of the interpreter, read after the kernel has confirmed that it is readable.
#![expect(unsafe_code, reason = "memory of the program")]

use memprof_unwind::is_readable;

const PAGE: usize = 4096;
/// Pages whose readability is remembered during one walk.
pub(crate) const PAGES: usize = 32;

/// Reads memory during one walk of one thread.
pub(crate) struct Reader<'a> {
    /// Addresses of pages that are readable, each at the index of its low bits; 0: none.
    pages: &'a mut [usize; PAGES],
}

impl<'a> Reader<'a> {
    /// Creates a reader that has checked no page yet. `pages` may have any content.
    pub(crate) fn new(pages: &'a mut [usize; PAGES]) -> Self {
        pages.fill(0);
        Self { pages }
    }

    /// Checks that the `len` bytes at `base` plus `offset` are readable, and returns their range. `None` if a page is
    /// unreadable or at address 0, if `len` is 0 or above 64 KiB, or if the range would exceed the address space.
    pub(crate) fn readable_range(
        &mut self,
        base: usize,
        offset: usize,
        len: usize,
    ) -> Option<ReadableRange> {
        let address = base.checked_add(offset)?;
        let last = address.checked_add(len.checked_sub(1)?)?;
        // The longest line table and the longest text that are read have 64 KiB.
        if len > 1 << 16 {
            return None;
        }
        for page in (address & !(PAGE - 1)..=last).step_by(PAGE) {
            // Remembers the page, in place of the one in the same cell, so that the kernel is called less often.
            let cell = &mut self.pages[page / PAGE % PAGES];
            // An empty cell holds 0, which must not count as page 0.
            if page == 0 || *cell != page && !is_readable(page) {
                return None;
            }
            *cell = page;
        }
        Some(ReadableRange { address, len })
    }

    /// Reads the aligned word at `base` plus `offset`. `None` if it is unaligned or unreadable.
    pub(crate) fn read_word(&mut self, base: usize, offset: usize) -> Option<usize> {
        let address = base.checked_add(offset)?;
        if !address.is_multiple_of(size_of::<usize>()) {
            return None;
        }
        self.readable_range(address, 0, size_of::<usize>())?;
        // SAFETY: the word is aligned, and `readable_range` found its page readable.
        Some(unsafe { (address as *const usize).read_volatile() })
    }

    /// Reads the aligned word at `base` plus `offset`, a pointer. `None` if it is unaligned, unreadable or 0.
    pub(crate) fn read_pointer(&mut self, base: usize, offset: usize) -> Option<usize> {
        self.read_word(base, offset).filter(|pointer| *pointer != 0)
    }

    /// Reads four bytes at `base` plus `offset`, aligned or not. `None` if they are unreadable.
    pub(crate) fn read_u32(&mut self, base: usize, offset: usize) -> Option<u32> {
        self.readable_range(base, offset, 4)?.read_u32(0)
    }

    /// Reads the byte at `base` plus `offset`. `None` if it is unreadable.
    pub(crate) fn read_u8(&mut self, base: usize, offset: usize) -> Option<u8> {
        self.readable_range(base, offset, 1)?.read_u8(0)
    }
}

/// Memory that was readable when it was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadableRange {
    address: usize,
    len: usize,
}

impl ReadableRange {
    /// Number of bytes in the range, at least 1.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Reads the byte at `offset` from the start of the range. `None` beyond its end.
    #[inline]
    pub(crate) fn read_u8(self, offset: usize) -> Option<u8> {
        if offset >= self.len {
            return None;
        }
        // SAFETY: `Reader::readable_range` found the page of this byte readable.
        Some(unsafe { ((self.address + offset) as *const u8).read_volatile() })
    }

    /// Reads two bytes, aligned or not, at `offset` from the start of the range. `None` beyond its end.
    pub(crate) fn read_u16(self, offset: usize) -> Option<u16> {
        let bytes = [self.read_u8(offset)?, self.read_u8(offset.checked_add(1)?)?];
        Some(u16::from_ne_bytes(bytes))
    }

    /// Reads four bytes, aligned or not, at `offset` from the start of the range. `None` beyond its end.
    pub(crate) fn read_u32(self, offset: usize) -> Option<u32> {
        let (low, high) = (
            self.read_u16(offset)?,
            self.read_u16(offset.checked_add(2)?)?,
        );
        Some(u32::from(high) << 16 | u32::from(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_and_unaligned_words_are_none() {
        let mut pages = [0; PAGES];
        let mut reader = Reader::new(&mut pages);
        let value = 0x1122_3344_5566_7788_usize;
        let address = &raw const value as usize;
        assert_eq!(reader.read_word(address, 0), Some(value));
        assert_eq!(reader.read_u32(address, 0), Some(0x5566_7788));
        assert_eq!(reader.read_u8(address, 7), Some(0x11));
        for bad in [0, 8, address + 1, usize::MAX - 7, 1 << 47] {
            assert_eq!(reader.read_word(bad, 0), None, "{bad:#x}");
        }
        assert!(reader.readable_range(address, 0, 0).is_none());
        assert!(reader.readable_range(usize::MAX - 1, 0, 8).is_none());
        let range = reader.readable_range(address, 0, 8).unwrap();
        assert_eq!(
            (range.read_u8(8), range.read_u16(7), range.read_u32(5)),
            (None, None, None)
        );
    }
}
