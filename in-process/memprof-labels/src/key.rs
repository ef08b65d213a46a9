//! Keys of labels, and the numbers by which records tell them.
#![expect(unsafe_code, reason = "a symbol of the note, and keys that stay")]

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// How many keys a process has, at the most.
pub const MOST_KEYS: usize = 64;

unsafe extern "C" {
    /// See the module `note`.
    safe static memprof_labels_note: u32;
}

static KEYS: KeyTable = KeyTable::new();

/// The number of a key in this process; none where there are [`MOST_KEYS`] others.
pub(crate) fn key_number(key: &str) -> Option<u8> {
    KEYS.key_number(key)
}

/// Each null, or leaked. No lock: a child that is forked while another thread sets one would wait for that thread, which
/// it does not have.
struct KeyTable([AtomicPtr<Box<str>>; MOST_KEYS]);

impl KeyTable {
    const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; MOST_KEYS])
    }

    fn key_number(&self, key: &str) -> Option<u8> {
        let mut places = (0..).zip(&self.0);
        places.find_map(|(number, place)| (intern_at(place, key) == key).then_some(number))
    }
}

/// The key that is there, which is `key` from now on if there was none.
fn intern_at<'a>(place: &'a AtomicPtr<Box<str>>, key: &str) -> &'a str {
    let mut there = place.load(Ordering::Acquire);
    if there.is_null() {
        // Has the linker take the note along with the code that needs it.
        black_box(&raw const memprof_labels_note);
        let made = Box::into_raw(Box::new(key.into()));
        let (kept, refused) = (Ordering::AcqRel, Ordering::Acquire);
        match place.compare_exchange(there, made, kept, refused) {
            Ok(_) => there = made,
            Err(first) => {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                there = first;
            }
        }
    }
    // SAFETY: leaked here, by this thread or another one.
    unsafe { &*there }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_number_and_there_is_a_last_one() {
        let keys = KeyTable::new();
        let names: Vec<_> = (0..MOST_KEYS)
            .map(|number| format!("key {number}"))
            .collect();
        for _ in 0..2 {
            for (number, name) in (0..).zip(&names) {
                assert_eq!(keys.key_number(name), Some(number));
            }
        }
        assert_eq!(keys.key_number("one more"), None);
    }
}
