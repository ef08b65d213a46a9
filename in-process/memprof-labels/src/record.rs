//! The calling thread's labels, as memprof reads them in the midst of `malloc`: a record of OpenTelemetry's thread
//! context (OTEP 4947) without ids. Only its own thread writes and reads it.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

/// Bytes of labels that a thread has, at the most (OTEP 4947: 640 for a whole record).
pub const MOST_BYTES: usize = 612;

/// What can be told of one value.
const MOST_OF_VALUE: usize = u8::MAX as usize;

/// How many bytes of labels the thread had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u16);

thread_local! {
    static CONTEXT: Context = const { Context::new() };
}

/// Within one page, so that its reader asks the kernel at most once whether it can be read.
#[repr(C, align(1024))]
struct Context {
    /// Null until the first label.
    current: Cell<*const Record>,
    record: Record,
}

#[repr(C)]
struct Record {
    trace_and_span: [u8; 24],
    valid: u8,
    flags: u8,
    length: Cell<u16>,
    /// `key number, length, value` of each label; of the same key the last one counts.
    attributes: [Cell<u8>; MOST_BYTES],
}

const _: () = assert!(size_of::<Record>() == 640);

impl Context {
    const fn new() -> Self {
        Self {
            current: Cell::new(ptr::null()),
            record: Record {
                trace_and_span: [0; 24],
                valid: 1,
                flags: 0,
                length: Cell::new(0),
                attributes: [const { Cell::new(0) }; MOST_BYTES],
            },
        }
    }

    /// Adds all of it, or nothing where it does not fit.
    fn push(&self, parts: [&[u8]; 2]) -> Mark {
        let before = self.record.length.get();
        let (start, length) = (usize::from(before), parts[0].len() + parts[1].len());
        let Some(room) = self.record.attributes.get(start..start + length) else {
            return Mark(before);
        };
        for (to, from) in room.iter().zip(parts.into_iter().flatten()) {
            to.set(*from);
        }
        // A signal handler that allocates meanwhile finds the labels of before.
        compiler_fence(Ordering::Release);
        self.record.length.set(before + length as u16);
        self.current.set(&raw const self.record);
        Mark(before)
    }

    fn pop(&self, Mark(before): Mark) {
        let now = self.record.length.get();
        self.record.length.set(now.min(before));
    }
}

/// Labels what the calling thread allocates until [`pop`]: for callers without scopes, as those in C; else see
/// [`label`](crate::label).
#[must_use]
pub fn push(key: &str, value: &str) -> Mark {
    match encode_label(key, value) {
        Some((head, value)) => CONTEXT.with(|context| context.push([&head, value])),
        None => checkpoint(),
    }
}

/// Ends the labels that the calling thread was given since the [`push`] that returned this mark.
pub fn pop(mark: Mark) {
    CONTEXT.with(|context| context.pop(mark));
}

/// As [`push`], several at once.
pub(crate) fn push_encoded(labels: &[u8]) -> Mark {
    CONTEXT.with(|context| context.push([labels, &[]]))
}

/// The bytes before a value, and what fits of it; none where there are too many keys.
pub(crate) fn encode_label<'a>(key: &str, value: &'a str) -> Option<([u8; 2], &'a [u8])> {
    let number = crate::key::key_number(key)?;
    let value = &value[..value.floor_char_boundary(MOST_OF_VALUE)];
    Some(([number, value.len() as u8], value.as_bytes()))
}

/// The labels that the calling thread has.
pub(crate) fn encoded() -> Vec<u8> {
    CONTEXT.with(|Context { record, .. }| {
        let length = usize::from(record.length.get());
        record.attributes[..length].iter().map(Cell::get).collect()
    })
}

/// Where the calling thread has the pointer to its record.
pub(crate) fn context_pointer() -> *const *const c_void {
    CONTEXT.with(|context| context.current.as_ptr().cast_const().cast())
}

fn checkpoint() -> Mark {
    CONTEXT.with(|context| Mark(context.record.length.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_end_in_the_reverse_order() {
        let none = encoded();
        let outer = push("route", "/search");
        let of_outer = encoded();
        let inner = push("tenant", "acme");
        assert_eq!(&encoded()[of_outer.len()..][1..], b"\x04acme");
        pop(inner);
        assert_eq!(encoded(), of_outer);
        pop(outer);
        assert_eq!(encoded(), none);
        // Late, of something that ended already.
        pop(inner);
        assert_eq!(encoded(), none);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let long = "ä".repeat(200);
        let first = push("long", &long);
        assert_eq!(encoded().len(), 2 + 254, "between two characters");
        let second = push("long", &long);
        let full = encoded();
        let third = push("long", &long);
        assert_eq!(encoded(), full);
        pop(third);
        assert_eq!(encoded(), full);
        pop(second);
        pop(first);
        assert!(encoded().is_empty());
    }

    #[test]
    fn each_thread_has_labels_of_its_own() {
        let mark = push("route", "/");
        let place_here = context_pointer() as usize;
        let (there, labels) = std::thread::spawn(|| (context_pointer() as usize, encoded()))
            .join()
            .unwrap();
        assert_ne!(there, place_here);
        assert!(labels.is_empty());
        pop(mark);
    }
}
