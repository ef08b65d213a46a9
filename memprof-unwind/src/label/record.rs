//! A thread's record, as OTEP 4947 lays it out:
//!
//! ```text
//! 0 trace id [16] · 16 span id [8] · 24 valid, 1 if whole · 25 flags · 26 length, 2 bytes · 28 attributes
//! attribute: key · length · as many bytes
//! ```

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::set::Set;
use super::{Context, NONE};
use crate::memory::{is_readable, page_of};

const VALID: usize = 24;
const LENGTH: usize = 26;
const ATTRIBUTES: usize = 28;
/// What a record may have of attributes (OTEP 4947).
const MOST_ATTRIBUTES: usize = 612;

/// One of [`Context`].
pub(super) struct Place {
    /// 0: none.
    module: AtomicUsize,
    offset: AtomicUsize,
    /// By key that counts, a byte: its index in a record, or [`NONE`].
    pub(super) keys: AtomicU64,
}

impl Place {
    pub(super) const fn new() -> Self {
        Self {
            module: AtomicUsize::new(0),
            offset: AtomicUsize::new(0),
            keys: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn set(&self, context: Option<&Context>) {
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
    pub(super) fn record(&self) -> Option<Record> {
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
        Record::at(record, variable)
    }
}

/// Where the calling thread has the variables of a library, if it has them (ELF Handling For Thread-Local Storage,
/// 3; glibc's `dtv_t`).
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
pub(super) struct Record {
    address: usize,
    /// Pages that were found readable: each one costs a system call.
    pages: [usize; 2],
}

impl Record {
    /// `near` can be read.
    fn at(address: usize, near: usize) -> Option<Self> {
        let mut record = Self {
            address,
            pages: [page_of(near); 2],
        };
        let is_whole = address != 0 && record.can_read(0, ATTRIBUTES) && record.byte(VALID) == 1;
        is_whole.then_some(record)
    }

    /// Whether so many bytes from there on can be read.
    fn can_read(&mut self, offset: usize, length: usize) -> bool {
        let Some(start) = self.address.checked_add(offset) else {
            return false;
        };
        let Some(last) = start.checked_add(length.saturating_sub(1)) else {
            return false;
        };
        // At most two: a record is smaller than a page.
        self.can_read_page(page_of(start))
            && (page_of(last) == page_of(start) || self.can_read_page(page_of(last)))
    }

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

    /// One that [`Self::can_read`].
    fn byte(&self, offset: usize) -> u8 {
        let byte = ptr::with_exposed_provenance::<u8>(self.address.wrapping_add(offset));
        // SAFETY: it was found readable; its own thread, which alone writes it, is here.
        unsafe { byte.read_volatile() }
    }

    /// Adds the attributes whose keys count.
    pub(super) fn read(&mut self, keys: u64, set: &mut Set) {
        let length = u16::from_ne_bytes([self.byte(LENGTH), self.byte(LENGTH + 1)]);
        let length = usize::from(length).min(MOST_ATTRIBUTES);
        if length == 0 || !self.can_read(ATTRIBUTES, length) {
            return;
        }
        let end = ATTRIBUTES + length;
        let mut at = ATTRIBUTES;
        while at + 2 <= end {
            let (found, length) = (self.byte(at), usize::from(self.byte(at + 1)));
            at += 2;
            // The rest is missing.
            if at + length > end {
                return;
            }
            let counts = keys
                .to_le_bytes()
                .iter()
                .position(|key| *key == found && *key != NONE);
            if let Some(key) = counts {
                let value = ptr::with_exposed_provenance(self.address.wrapping_add(at));
                // SAFETY: these bytes are among those that were found readable.
                unsafe { set.add_from(key as u8, value, length) };
            }
            at += length;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

    use super::*;
    use crate::label::set::tests::labels;

    /// As a writer of OTEP 4947 lays it out.
    fn record(valid: u8, attributes: &[u8]) -> Vec<u8> {
        let mut record = std::vec![0; ATTRIBUTES];
        record[VALID] = valid;
        record[LENGTH..ATTRIBUTES].copy_from_slice(&(attributes.len() as u16).to_ne_bytes());
        record.extend_from_slice(attributes);
        record
    }

    #[track_caller]
    fn check(record: &[u8], expected: &[(u8, &str)]) {
        let mut set = Set::new();
        if let Some(mut record) =
            Record::at(record.as_ptr().expose_provenance(), record.as_ptr().addr())
        {
            // Of the record, 7 is the first key that counts, and 3 the second.
            let keys = [7, 3, NONE, NONE, NONE, NONE, NONE, NONE];
            record.read(u64::from_le_bytes(keys), &mut set);
        }
        assert_eq!(
            labels(set.bytes()),
            expected
                .iter()
                .map(|(key, value)| (*key, String::from(*value)))
                .collect::<Vec<_>>()
        );
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

    #[test]
    fn what_a_broken_writer_left_is_not_followed() {
        // Longer than the record says, or than it may be.
        check(&record(1, b"\x07\x01a\x03\xffz"), &[(0, "a")]);
        check(&record(1, b"\x07\x01a\x03"), &[(0, "a")]);
        let mut long = record(1, &[7; 700]);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        long[LENGTH..ATTRIBUTES].fill(0xff);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        for wild in [1, 0x1000, usize::MAX - 8, 1 << 63, 0x4d50_0000_0000_0001] {
            assert!(
                Record::at(wild, long.as_ptr().addr()).is_none(),
                "{wild:#x}"
            );
        }
    }
}
