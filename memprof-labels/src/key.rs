//! Keys of labels, and the numbers by which records tell them.
#![expect(unsafe_code, reason = "a symbol of the note")]

use std::hint::black_box;
use std::sync::OnceLock;

/// How many keys a process has, at the most.
pub const MOST_KEYS: usize = 64;

unsafe extern "C" {
    /// See the module `note`.
    safe static memprof_labels_note: u32;
}

static KEYS: Keys = Keys([const { OnceLock::new() }; MOST_KEYS]);

/// The number of a key in this process; none where there are [`MOST_KEYS`] others.
pub(crate) fn number_of(key: &str) -> Option<u8> {
    KEYS.number_of(key)
}

struct Keys([OnceLock<Box<str>>; MOST_KEYS]);

impl Keys {
    fn number_of(&self, key: &str) -> Option<u8> {
        for (number, place) in (0..).zip(&self.0) {
            let known = place.get_or_init(|| {
                // Has the linker take the note along with the code that needs it.
                black_box(&raw const memprof_labels_note);
                key.into()
            });
            if **known == *key {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_number_and_there_is_a_last_one() {
        let keys = Keys([const { OnceLock::new() }; MOST_KEYS]);
        let names: Vec<_> = (0..MOST_KEYS)
            .map(|number| format!("key {number}"))
            .collect();
        for _ in 0..2 {
            for (number, name) in (0..).zip(&names) {
                assert_eq!(keys.number_of(name), Some(number));
            }
        }
        assert_eq!(keys.number_of("one more"), None);
    }
}
