//! Record of a thread context, as OTEP 4947 defines it:
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

const VALID_OFFSET: usize = 24;
const ATTRIBUTES_OFFSET: usize = 28;
/// Maximum number of attribute bytes in a record (OTEP 4947).
const MAX_ATTRIBUTE_BYTES: usize = 612;

/// Cell for one [`LabelContext`]. Samples may read it while it changes.
pub(super) struct ContextCell {
    /// 0 if the cell is empty.
    module: AtomicUsize,
    offset: AtomicUsize,
    /// One byte for each recorded key: its index in a record, or [`NONE`].
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

    /// Stores `context`, or clears the cell if it is `None`. A sample taken at the same time may read fields of both
    /// the old and the new context.
    pub(super) fn set_context(&self, context: Option<&LabelContext>) {
        let Some(context) = context else {
            return self.module.store(0, Relaxed);
        };
        let keys = context.keys.map(|key| key.unwrap_or(NONE));
        self.keys.store(u64::from_le_bytes(keys), Relaxed);
        self.offset.store(context.offset, Relaxed);
        self.module.store(context.module, Relaxed);
    }

    /// Returns whether the cell has a context.
    pub(super) fn is_set(&self) -> bool {
        self.module.load(Relaxed) != 0
    }

    /// Returns the calling thread's record. `None` if the cell is empty, or if the thread has no record that is
    /// readable and complete.
    #[inline(always)]
    pub(super) fn record_of_this_thread(&self) -> Option<ContextRecord> {
        let module = self.module.load(Relaxed);
        if module == 0 {
            return None;
        }
        let variables = tls_block_address(module)?;
        let variable = variables.checked_add(self.offset.load(Relaxed))?;
        // Module 1 is the executable. Its variables are in the thread's own TLS block, next to the control block, so
        // they are readable while the thread runs.
        let is_readable_now = module == 1 || is_readable(variable);
        if !is_readable_now || !variable.is_multiple_of(size_of::<usize>()) {
            return None;
        }
        // SAFETY: an aligned word, checked to be readable.
        let record = unsafe { ptr::with_exposed_provenance::<usize>(variable).read_volatile() };
        ContextRecord::read_at(record, variable)
    }
}

/// Returns the address of the calling thread's TLS block of a library, by its module ID (ELF Handling For Thread-Local
/// Storage, 3; glibc's `dtv_t`). `None` if the block is not allocated.
#[inline(always)]
fn tls_block_address(module: usize) -> Option<usize> {
    /// glibc's value for a block that is not allocated yet.
    const UNALLOCATED: usize = usize::MAX;
    let vector: *const [usize; 2];
    // SAFETY: ELF TLS: the second word of a thread's control block points to its vector of TLS blocks.
    unsafe {
        asm!("mov {}, fs:8", out(reg) vector, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: glibc stores the number of elements before the first one.
    let [count, _] = unsafe { vector.wrapping_sub(1).read() };
    if module > count {
        return None;
    }
    // SAFETY: `module` is at most the number of elements.
    let [address, _] = unsafe { vector.wrapping_add(module).read() };
    (address != UNALLOCATED && address != 0).then_some(address)
}

/// A thread's record. Each page of it is checked before it is read.
pub(super) struct ContextRecord {
    address: usize,
    /// Size of all attributes, in bytes.
    length: usize,
    /// Pages that are known to be readable. Remembered because each check costs a system call.
    pages: [usize; 2],
}

impl ContextRecord {
    /// Reads the head of the record at `address`. `None` if there is no complete record. `known` is an address in a
    /// page that is known to be readable.
    #[inline(always)]
    fn read_at(address: usize, known: usize) -> Option<Self> {
        let mut record = Self {
            address,
            length: 0,
            pages: [page_of(known); 2],
        };
        if address == 0 || !record.can_read(0, ATTRIBUTES_OFFSET) {
            return None;
        }
        // SAFETY: `can_read` checked the head. Only this thread writes it, and this thread is here.
        let head: u32 = unsafe { read_once(address.wrapping_add(VALID_OFFSET)) };
        // The fields are `valid`, a reserved byte, and the length in 16 bits.
        let [valid, _, low, high] = head.to_ne_bytes();
        record.length = usize::from(u16::from_ne_bytes([low, high])).min(MAX_ATTRIBUTE_BYTES);
        (valid == 1).then_some(record)
    }

    /// Returns whether the record's `length` bytes from `offset` on are readable. Asks the kernel about pages that are
    /// not known to be readable, and remembers them.
    #[inline(always)]
    fn can_read(&mut self, offset: usize, length: usize) -> bool {
        let Some(start) = self.address.checked_add(offset) else {
            return false;
        };
        let Some(last) = start.checked_add(length.saturating_sub(1)) else {
            return false;
        };
        // A record is smaller than a page, so it touches at most two pages.
        let pages = [page_of(start), page_of(last)];
        pages == [self.pages[0]; 2] || pages.into_iter().all(|page| self.can_read_page(page))
    }

    /// Returns whether the page at this address is readable. Makes a system call unless the page is known to be
    /// readable, and remembers it if it is.
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

    /// Adds the record's attributes to `set`, as far as their keys are recorded. `keys` has one byte for each recorded
    /// key: its index in the record. Stops at an incomplete attribute.
    #[inline(always)]
    pub(super) fn add_labels_to(&mut self, keys: u64, set: &mut LabelSet<'_>) {
        if self.length == 0 || !self.can_read(ATTRIBUTES_OFFSET, self.length) {
            return;
        }
        let mut address = self.address.wrapping_add(ATTRIBUTES_OFFSET);
        let mut remaining = self.length;
        while let Some(rest) = remaining.checked_sub(2) {
            // SAFETY: these bytes are among those that `can_read` checked.
            let [index, length] = unsafe { read_once::<u16>(address) }.to_ne_bytes();
            address = address.wrapping_add(2);
            let length = usize::from(length);
            // The length exceeds the record: the value is missing or incomplete.
            let Some(rest) = rest.checked_sub(length) else {
                return;
            };
            if let Some(key) = key_position(index, keys) {
                // SAFETY: the value is among the bytes that `can_read` checked. So are the eight bytes before it, which
                // are at least part of the record's head.
                unsafe { set.add_label(key, address, length) };
            }
            address = address.wrapping_add(length);
            remaining = rest;
        }
    }
}

/// Returns the position in `keys` of the key with `index` in the record. `keys` has one byte per recorded key. `None`
/// if that key is not recorded.
#[inline(always)]
fn key_position(index: u8, keys: u64) -> Option<u8> {
    const LOWEST: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHEST: u64 = LOWEST << 7;
    // Finds a zero byte: the byte of an equal key is 0, and subtracting 1 from it sets its highest bit. Bytes above the
    // lowest zero may be wrong, because it borrows from them.
    let differing = keys ^ (u64::from(index) * LOWEST);
    let equal = differing.wrapping_sub(LOWEST) & !differing & HIGHEST;
    let number = equal.trailing_zeros() / u8::BITS;
    (index != NONE && equal != 0).then_some(number as u8)
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

    /// Encodes a record as OTEP 4947 defines it. `valid` is its first field; 1 for a complete record.
    fn record(valid: u8, attributes: &[u8]) -> Vec<u8> {
        let mut record = std::vec![0; ATTRIBUTES_OFFSET];
        record[VALID_OFFSET] = valid;
        record[VALID_OFFSET + 2..ATTRIBUTES_OFFSET]
            .copy_from_slice(&(attributes.len() as u16).to_ne_bytes());
        record.extend_from_slice(attributes);
        record
    }

    /// Checks the labels that are read from a record, of which the keys with the indices 7 and 3 are recorded, under
    /// the numbers 0 and 1.
    #[track_caller]
    fn check(record: &[u8], expected: &[(u8, &str)]) {
        let mut buffer = [MaybeUninit::uninit(); SET_WORDS];
        let mut set = LabelSet::new(&mut buffer);
        if let Some(mut record) =
            ContextRecord::read_at(record.as_ptr().expose_provenance(), record.as_ptr().addr())
        {
            // In the record, 7 is the index of the first recorded key, and 3 that of the second.
            let keys = [7, 3, NONE, NONE, NONE, NONE, NONE, NONE];
            record.add_labels_to(u64::from_le_bytes(keys), &mut set);
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
    fn recorded_keys_have_their_index() {
        let recorded = [7, 3, 0, 128, 127, 254, 3, NONE];
        let keys = u64::from_le_bytes(recorded);
        for index in 0..=u8::MAX {
            let number = recorded.iter().position(|key| *key == index);
            let number = number.filter(|_| index != NONE).map(|number| number as u8);
            assert_eq!(key_position(index, keys), number, "{index}");
        }
    }

    #[test]
    fn attributes_of_recorded_keys_are_read() {
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

    /// A readable page between two unreadable ones. Never unmapped.
    fn page_alone() -> &'static mut [u8] {
        // SAFETY: mmap(2): a new mapping at an address that the kernel chooses.
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
        // SAFETY: mprotect(2): a page of that mapping, to which no reference exists.
        let rc = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(rc, 0);
        // SAFETY: the page is mapped for good, and this is the only reference to it.
        unsafe { core::slice::from_raw_parts_mut(page.cast(), PAGE) }
    }

    #[test]
    fn record_at_page_edge_is_read_without_touching_neighbours() {
        let page = page_alone();
        for length in 0..=40 {
            let value = &"0123456789012345678901234567890123456789"[..length];
            let attributes = [&[7, length as u8], value.as_bytes()].concat();
            let whole = record(1, &attributes);
            for start in [0, PAGE - whole.len()] {
                let part = &mut page[start..start + whole.len()];
                part.copy_from_slice(&whole);
                check(part, &[(0, value)]);
            }
        }
    }

    #[test]
    fn malformed_record_is_read_up_to_its_fault() {
        // Attributes longer than the record says, or than a record may be.
        check(&record(1, b"\x07\x01a\x03\xffz"), &[(0, "a")]);
        check(&record(1, b"\x07\x01a\x03"), &[(0, "a")]);
        let mut long = record(1, &[7; 700]);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        long[VALID_OFFSET + 2..ATTRIBUTES_OFFSET].fill(0xff);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        for wild in [1, 0x1000, usize::MAX - 8, 1 << 63, 0x4d50_0000_0000_0001] {
            assert!(
                ContextRecord::read_at(wild, long.as_ptr().addr()).is_none(),
                "{wild:#x}"
            );
        }
    }
}
