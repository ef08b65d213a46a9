//! Keys of labels, and the numbers that stand for them in records.
#![expect(
    unsafe_code,
    reason = "a symbol of the ELF note, and keys that are never freed"
)]

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Largest number of keys in a process.
pub const MOST_KEYS: usize = 64;

unsafe extern "C" {
    /// The note of the module `elf_note`.
    safe static memprof_labels_note: u32;
}

static KEYS: KeyTable = KeyTable::new();

/// Returns the number of a key in this process, and adds the key if it is new. `None` if there are [`MOST_KEYS`] other
/// keys.
pub(crate) fn intern_key(key: &str) -> Option<u8> {
    KEYS.intern_key(key)
}

/// Keys by number, each null or leaked. It has no lock, for which a child that is forked while another thread adds a
/// key would wait for ever.
struct KeyTable([AtomicPtr<Box<str>>; MOST_KEYS]);

impl KeyTable {
    const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; MOST_KEYS])
    }

    /// Returns the number of a key, and adds the key if it is new. `None` if the table is full.
    fn intern_key(&self, key: &str) -> Option<u8> {
        let mut slots = (0..).zip(&self.0);
        slots.find_map(|(number, slot)| (intern_at(slot, key) == key).then_some(number))
    }
}

/// Returns the key in the slot, after storing `key` there if the slot was empty.
fn intern_at<'a>(slot: &'a AtomicPtr<Box<str>>, key: &str) -> &'a str {
    let mut current = slot.load(Ordering::Acquire);
    if current.is_null() {
        // The reference makes the linker include the note with the code that needs it.
        black_box(&raw const memprof_labels_note);
        let new = Box::into_raw(Box::new(key.into()));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match slot.compare_exchange(current, new, success, failure) {
            Ok(_) => current = new,
            Err(first) => {
                // SAFETY: the box was not stored, so no other thread has its address.
                drop(unsafe { Box::from_raw(new) });
                current = first;
            }
        }
    }
    // SAFETY: a key that this or another thread leaked into the slot.
    unsafe { &*current }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_keeps_number_and_full_table_refuses() {
        let keys = KeyTable::new();
        let names: Vec<_> = (0..MOST_KEYS)
            .map(|number| format!("key {number}"))
            .collect();
        for _ in 0..2 {
            for (number, name) in (0..).zip(&names) {
                assert_eq!(keys.intern_key(name), Some(number));
            }
        }
        assert_eq!(keys.intern_key("one more"), None);
    }
}
