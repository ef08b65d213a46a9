//! Keys of labels, and their numbers in records.
#![expect(
    unsafe_code,
    reason = "a symbol of the ELF note, and keys that are never freed"
)]

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Maximum number of keys in a process.
pub const MOST_KEYS: usize = 64;

unsafe extern "C" {
    /// The note in the module `elf_note`.
    safe static memprof_labels_note: u32;
}

static KEYS: KeyTable = KeyTable::new();

/// Returns the number of a key in this process. Adds the key if it is new. `None` if there are already [`MOST_KEYS`]
/// other keys.
pub(crate) fn intern_key(key: &str) -> Option<u8> {
    KEYS.intern_key(key)
}

/// Keys by number; each element is null or a leaked key. The table has no lock: if a child were forked while another
/// thread held it, the child would wait for it forever.
struct KeyTable([AtomicPtr<Box<str>>; MOST_KEYS]);

impl KeyTable {
    const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; MOST_KEYS])
    }

    /// Returns the number of a key, which is the index of its slot. Adds the key in the first empty slot if it is new.
    /// `None` if the table is full. Takes no lock.
    fn intern_key(&self, key: &str) -> Option<u8> {
        let mut slots = (0..).zip(&self.0);
        slots.find_map(|(number, slot)| (intern_in_slot(slot, key) == key).then_some(number))
    }
}

/// Returns the key in a slot. If the slot is empty, stores `key` there first.
fn intern_in_slot<'a>(slot: &'a AtomicPtr<Box<str>>, key: &str) -> &'a str {
    let mut current = slot.load(Ordering::Acquire);
    if current.is_null() {
        // This reference makes the linker include the note in every program that sets labels.
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
    // SAFETY: the slot contains a key that this or another thread leaked.
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
