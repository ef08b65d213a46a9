//! A thread's record, as OTEP 4947 lays it out:
//!
//! ```text
//! 0 trace id [16] · 16 span id [8] · 24 valid, 1 if whole · 25 flags · 26 length, 2 bytes · 28 attributes
//! attribute: key · length · as many bytes
//! ```

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::label_set::{LabelSet, read_once};
use super::{LabelContext, NONE};
use crate::stack_memory::{is_readable, page_of};

const VALID: usize = 24;
const ATTRIBUTES: usize = 28;
/// What a record may have of attributes (OTEP 4947).
const MOST_ATTRIBUTES: usize = 612;

/// One of [`LabelContext`].
pub(super) struct ContextCell {
    /// 0: none.
    module: AtomicUsize,
    offset: AtomicUsize,
    /// By key that counts, a byte: its index in a record, or [`NONE`].
    pub(super) keys: AtomicU64,
}

impl ContextCell {
    pub(super) const fn new() -> Self {
        Self {
            module: AtomicUsize::new(0),
            offset: AtomicUsize::new(0),
            keys: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn set(&self, context: Option<&LabelContext>) {
        let Some(context) = context else {
            return self.module.store(0, Relaxed);
        };
        let keys = context.keys.map(|key| key.unwrap_or(NONE));
        self.keys.store(u64::from_le_bytes(keys), Relaxed);
        self.offset.store(context.offset, Relaxed);
        self.module.store(context.module, Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.module.load(Relaxed) != 0
    }

    /// The calling thread's record, if it is whole.
    #[inline(always)]
    pub(super) fn record(&self) -> Option<ContextRecord> {
        let module = self.module.load(Relaxed);
        if module == 0 {
            return None;
        }
        let variables = variables(module)?;
        let variable = variables.checked_add(self.offset.load(Relaxed))?;
        // The first library's lie below the thread's control block, for as long as it lives.
        let is_there = module == 1 || is_readable(variable);
        if !is_there || !variable.is_multiple_of(size_of::<usize>()) {
            return None;
        }
        // SAFETY: a word that can be read.
        let record = unsafe { ptr::with_exposed_provenance::<usize>(variable).read_volatile() };
        ContextRecord::at(record, variable)
    }
}

/// Where the calling thread has the variables of a library, if it has them (ELF Handling For Thread-Local Storage,
/// 3; glibc's `dtv_t`).
#[inline(always)]
fn variables(module: usize) -> Option<usize> {
    /// Not allocated yet.
    const UNALLOCATED: usize = usize::MAX;
    let vector: *const [usize; 2];
    // SAFETY: the second word of a thread's control block is its vector of libraries.
    unsafe {
        asm!("mov {}, fs:8", out(reg) vector, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: glibc keeps the number of entries before the first.
    let [count, _] = unsafe { vector.wrapping_sub(1).read() };
    if module > count {
        return None;
    }
    // SAFETY: one of them.
    let [variables, _] = unsafe { vector.wrapping_add(module).read() };
    (variables != UNALLOCATED && variables != 0).then_some(variables)
}

/// What can be read of a record: `ATTRIBUTES` bytes and so many more.
pub(super) struct ContextRecord {
    address: usize,
    /// Of all attributes, in bytes.
    length: usize,
    /// Pages that were found readable: each one costs a system call.
    pages: [usize; 2],
}

impl ContextRecord {
    /// `near` can be read.
    #[inline(always)]
    fn at(address: usize, near: usize) -> Option<Self> {
        let mut record = Self {
            address,
            length: 0,
            pages: [page_of(near); 2],
        };
        if address == 0 || !record.can_read(0, ATTRIBUTES) {
            return None;
        }
        // SAFETY: found readable; its own thread, which alone writes it, is here.
        let head: u32 = unsafe { read_once(address.wrapping_add(VALID)) };
        let [valid, _, low, high] = head.to_ne_bytes();
        record.length = usize::from(u16::from_ne_bytes([low, high])).min(MOST_ATTRIBUTES);
        (valid == 1).then_some(record)
    }

    /// Whether so many bytes from there on can be read.
    #[inline(always)]
    fn can_read(&mut self, offset: usize, length: usize) -> bool {
        let Some(start) = self.address.checked_add(offset) else {
            return false;
        };
        let Some(last) = start.checked_add(length.saturating_sub(1)) else {
            return false;
        };
        // At most two: a record is smaller than a page.
        let pages = [page_of(start), page_of(last)];
        pages == [self.pages[0]; 2] || pages.into_iter().all(|page| self.can_read_page(page))
    }

    #[cold]
    fn can_read_page(&mut self, page: usize) -> bool {
        if self.pages.contains(&page) {
            return true;
        }
        let can = is_readable(page);
        if can {
            self.pages[1] = page;
        }
        can
    }

    /// Adds the attributes whose keys count.
    #[inline(always)]
    pub(super) fn read(&mut self, keys: u64, set: &mut LabelSet<'_>) {
        if self.length == 0 || !self.can_read(ATTRIBUTES, self.length) {
            return;
        }
        let mut at = self.address.wrapping_add(ATTRIBUTES);
        let mut left = self.length;
        while let Some(behind) = left.checked_sub(2) {
            // SAFETY: these bytes are among those that were found readable.
            let [found, length] = unsafe { read_once::<u16>(at) }.to_ne_bytes();
            at = at.wrapping_add(2);
            let length = usize::from(length);
            // The rest is missing.
            let Some(behind) = behind.checked_sub(length) else {
                return;
            };
            if let Some(key) = key_number(found, keys) {
                // SAFETY: so are these, and those before, which are more than eight.
                unsafe { set.add(key, at, length) };
            }
            at = at.wrapping_add(length);
            left = behind;
        }
    }
}

/// The number among the keys that count, a byte each, of one that was found.
#[inline(always)]
fn key_number(found: u8, keys: u64) -> Option<u8> {
    const LOWEST: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHEST: u64 = LOWEST << 7;
    // The byte of an equal key is 0, and the lowest 0 borrows from the byte above it.
    let differing = keys ^ (u64::from(found) * LOWEST);
    let equal = differing.wrapping_sub(LOWEST) & !differing & HIGHEST;
    let number = equal.trailing_zeros() / u8::BITS;
    (found != NONE && equal != 0).then_some(number as u8)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::mem::MaybeUninit;
    use std::string::String;
    use std::vec::Vec;

    use super::*;
    use crate::label::label_set::SET_WORDS;
    use crate::label::label_set::tests::labels;
    use crate::stack_memory::PAGE;

    /// As a writer of OTEP 4947 lays it out.
    fn record(valid: u8, attributes: &[u8]) -> Vec<u8> {
        let mut record = std::vec![0; ATTRIBUTES];
        record[VALID] = valid;
        record[VALID + 2..ATTRIBUTES].copy_from_slice(&(attributes.len() as u16).to_ne_bytes());
        record.extend_from_slice(attributes);
        record
    }

    #[track_caller]
    fn check(record: &[u8], expected: &[(u8, &str)]) {
        let mut room = [MaybeUninit::uninit(); SET_WORDS];
        let mut set = LabelSet::new(&mut room);
        if let Some(mut record) =
            ContextRecord::at(record.as_ptr().expose_provenance(), record.as_ptr().addr())
        {
            // Of the record, 7 is the first key that counts, and 3 the second.
            let keys = [7, 3, NONE, NONE, NONE, NONE, NONE, NONE];
            record.read(u64::from_le_bytes(keys), &mut set);
        }
        assert_eq!(
            labels(&set),
            expected
                .iter()
                .map(|(key, value)| (*key, String::from(*value)))
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn keys_that_count_have_numbers() {
        let wanted = [7, 3, 0, 128, 127, 254, 3, NONE];
        let keys = u64::from_le_bytes(wanted);
        for found in 0..=u8::MAX {
            let number = wanted.iter().position(|key| *key == found);
            let number = number.filter(|_| found != NONE).map(|number| number as u8);
            assert_eq!(key_number(found, keys), number, "{found}");
        }
    }

    #[test]
    fn the_attributes_that_count_are_read() {
        check(
            &record(1, b"\x07\x02/x\x05\x01y\x03\x01z"),
            &[(0, "/x"), (1, "z")],
        );
        check(
            &record(1, b"\x07\x01a\x03\x01z\x07\x01b"),
            &[(1, "z"), (0, "b")],
        );
        check(&record(1, b"\x07\x00"), &[(0, "")]);
        check(&record(0, b"\x07\x02/x"), &[]);
        check(&record(1, b""), &[]);
    }

    /// A page between two that cannot be read; never unmapped.
    fn page_alone() -> &'static mut [u8] {
        // SAFETY: mmap(2): a fresh mapping.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                3 * PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let page = start.wrapping_byte_add(PAGE);
        // SAFETY: mprotect(2): a page of that mapping, which nobody uses.
        let rc = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(rc, 0);
        // SAFETY: so many bytes, which are nobody else's.
        unsafe { core::slice::from_raw_parts_mut(page.cast(), PAGE) }
    }

    #[test]
    fn nothing_is_read_beside_a_record() {
        let page = page_alone();
        for length in 0..=40 {
            let value = &"0123456789012345678901234567890123456789"[..length];
            let attributes = [&[7, length as u8], value.as_bytes()].concat();
            let whole = record(1, &attributes);
            for start in [0, PAGE - whole.len()] {
                let place = &mut page[start..start + whole.len()];
                place.copy_from_slice(&whole);
                check(place, &[(0, value)]);
            }
        }
    }

    #[test]
    fn what_a_broken_writer_left_is_not_followed() {
        // Longer than the record says, or than it may be.
        check(&record(1, b"\x07\x01a\x03\xffz"), &[(0, "a")]);
        check(&record(1, b"\x07\x01a\x03"), &[(0, "a")]);
        let mut long = record(1, &[7; 700]);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        long[VALID + 2..ATTRIBUTES].fill(0xff);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        for wild in [1, 0x1000, usize::MAX - 8, 1 << 63, 0x4d50_0000_0000_0001] {
            assert!(
                ContextRecord::at(wild, long.as_ptr().addr()).is_none(),
                "{wild:#x}"
            );
        }
    }
}
