//! The calling thread's labels in the format that memprof reads during `malloc`: a record of OpenTelemetry's thread
//! context (OTEP 4947) without ids. Only its own thread writes and reads a record.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

/// Maximum size of a thread's labels in bytes (OTEP 4947: 640 bytes for a whole record).
pub const MOST_BYTES: usize = 612;

/// Maximum size of a value in bytes. Its length is stored in one byte.
const MAX_VALUE_BYTES: usize = u8::MAX as usize;

/// Size of the thread's labels before a [`push`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u16);

thread_local! {
    static CONTEXT: Context = const { Context::new() };
}

/// A thread's context. It is within one page, so that a reader needs at most one system call to check that it is
/// readable.
#[repr(C, align(1024))]
struct Context {
    /// Pointer to `record`; null until the first label.
    current: Cell<*const Record>,
    record: Record,
}

/// A record of OTEP 4947.
#[repr(C)]
struct Record {
    trace_and_span: [u8; 24],
    valid: u8,
    flags: u8,
    length: Cell<u16>,
    /// Key number, length and value of each label. If several labels have the same key, the last one counts.
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

    /// Appends the two parts of encoded labels, or neither if they do not fit. Returns the previous length, to which
    /// [`Self::pop`] truncates.
    fn push(&self, parts: [&[u8]; 2]) -> Mark {
        let before = self.record.length.get();
        let (start, length) = (usize::from(before), parts[0].len() + parts[1].len());
        let Some(room) = self.record.attributes.get(start..start + length) else {
            return Mark(before);
        };
        for (to, from) in room.iter().zip(parts.into_iter().flatten()) {
            to.set(*from);
        }
        // The length is stored last: a signal handler that allocates before that gets the previous labels.
        compiler_fence(Ordering::Release);
        self.record.length.set(before + length as u16);
        self.current.set(&raw const self.record);
        Mark(before)
    }

    /// Truncates the labels to their length before a push. Does nothing if they are already shorter.
    fn pop(&self, Mark(before): Mark) {
        let current = self.record.length.get();
        self.record.length.set(current.min(before));
    }
}

/// Labels the memory that the calling thread allocates until [`pop`] of the returned mark. For callers without scopes,
/// such as C code; otherwise use [`label`](crate::label). A value is truncated to 255 bytes. The label is omitted if
/// the thread has no space left for it ([`MOST_BYTES`]), or if the process has no key left
/// ([`MOST_KEYS`](crate::MOST_KEYS)).
#[must_use]
pub fn push(key: &str, value: &str) -> Mark {
    match encode_label(key, value) {
        Some((head, value)) => CONTEXT.with(|context| context.push([&head, value])),
        None => current_mark(),
    }
}

/// Ends the calling thread's label from the [`push`] that returned `mark`, and all labels pushed after it.
pub fn pop(mark: Mark) {
    CONTEXT.with(|context| context.pop(mark));
}

/// Labels the memory that the calling thread allocates, until [`pop`] of the returned mark. `labels` are several labels
/// in the format of [`encoded_labels`]. Either all of them fit, or all are omitted.
pub(crate) fn push_encoded(labels: &[u8]) -> Mark {
    CONTEXT.with(|context| context.push([labels, &[]]))
}

/// Encodes a label: returns the bytes before the value, which are the key's number and the value's length, and the
/// value. Truncates the value to 255 bytes at a character boundary. `None` if the process already has
/// [`MOST_KEYS`](crate::MOST_KEYS) other keys.
pub(crate) fn encode_label<'a>(key: &str, value: &'a str) -> Option<([u8; 2], &'a [u8])> {
    let number = crate::key::intern_key(key)?;
    let value = &value[..value.floor_char_boundary(MAX_VALUE_BYTES)];
    Some(([number, value.len() as u8], value.as_bytes()))
}

/// Returns the labels of the calling thread as bytes: for each label the number of its key, the length of its value and
/// the value.
pub(crate) fn encoded_labels() -> Vec<u8> {
    CONTEXT.with(|Context { record, .. }| {
        let length = usize::from(record.length.get());
        record.attributes[..length].iter().map(Cell::get).collect()
    })
}

/// Returns the address of the calling thread's pointer to its record. That pointer is null until the thread's first
/// label.
pub(crate) fn address_of_context_pointer() -> *const *const c_void {
    CONTEXT.with(|context| context.current.as_ptr().cast_const().cast())
}

/// Returns the current length of the calling thread's labels.
fn current_mark() -> Mark {
    CONTEXT.with(|context| Mark(context.record.length.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pop_ends_inner_labels() {
        let none = encoded_labels();
        let outer = push("route", "/search");
        let of_outer = encoded_labels();
        let inner = push("tenant", "acme");
        assert_eq!(&encoded_labels()[of_outer.len()..][1..], b"\x04acme");
        pop(inner);
        assert_eq!(encoded_labels(), of_outer);
        pop(outer);
        assert_eq!(encoded_labels(), none);
        // It is popped late: the label has already ended.
        pop(inner);
        assert_eq!(encoded_labels(), none);
    }

    #[test]
    fn label_that_does_not_fit_is_omitted() {
        let long = "ä".repeat(200);
        let first = push("long", &long);
        assert_eq!(encoded_labels().len(), 2 + 254, "between two characters");
        let second = push("long", &long);
        let full = encoded_labels();
        let third = push("long", &long);
        assert_eq!(encoded_labels(), full);
        pop(third);
        assert_eq!(encoded_labels(), full);
        pop(second);
        pop(first);
        assert!(encoded_labels().is_empty());
    }

    #[test]
    fn thread_starts_without_labels() {
        let mark = push("route", "/");
        let own_pointer = address_of_context_pointer() as usize;
        let (other_pointer, labels) =
            std::thread::spawn(|| (address_of_context_pointer() as usize, encoded_labels()))
                .join()
                .unwrap();
        assert_ne!(other_pointer, own_pointer);
        assert!(labels.is_empty());
        pop(mark);
    }
}
