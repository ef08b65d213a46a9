//! Labels for the duration of a scope.

use std::marker::PhantomData;

use crate::record::{Mark, encode_label, encoded_labels, pop, push, push_encoded};

/// Labels the memory that the calling thread allocates until the guard is dropped. The thread's other labels stay in
/// force. If a key is labelled twice, the inner label counts. A value is truncated to 255 bytes. The label is omitted
/// if the thread has no space left for it ([`MOST_BYTES`](crate::MOST_BYTES)), or if the process has no key left
/// ([`MOST_KEYS`](crate::MOST_KEYS)).
///
/// Guards must be dropped in reverse order, as scopes do. `async` code may change its thread at each `.await`, so use
/// [`labelled`](crate::Label::labelled) there.
#[must_use = "the label ends where this is dropped"]
pub fn label(key: &str, value: &str) -> Entered {
    Entered::from(push(key, value))
}

/// Labels that are created once and entered often, for example for a request, a tenant or a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    encoded: Vec<u8>,
}

impl Labels {
    /// Creates an empty set of labels, to which [`Self::with`] adds.
    pub const fn new() -> Self {
        Self {
            encoded: Vec::new(),
        }
    }

    /// Returns the labels of the calling thread, to pass them to another thread or task.
    pub fn current() -> Self {
        Self {
            encoded: encoded_labels(),
        }
    }

    /// Adds a label. If a key is added twice, the later label counts. A value is truncated to 255 bytes. The label is
    /// omitted if the process already has [`MOST_KEYS`](crate::MOST_KEYS) other keys.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        if let Some((head, value)) = encode_label(key, value) {
            self.encoded.extend(head);
            self.encoded.extend(value);
        }
        self
    }

    /// Labels the memory that the calling thread allocates with all of these labels, until the guard is dropped. Either
    /// all of them fit, or all are omitted.
    #[must_use = "the labels end where this is dropped"]
    pub fn enter(&self) -> Entered {
        Entered::from(push_encoded(&self.encoded))
    }
}
/// Guard that ends labels of the calling thread when it is dropped.
#[derive(Debug)]
pub struct Entered {
    before: Mark,
    /// Makes the guard `!Send`, because a label belongs to the thread that pushed it.
    not_sent: PhantomData<*const ()>,
}

impl From<Mark> for Entered {
    fn from(before: Mark) -> Self {
        Self {
            before,
            not_sent: PhantomData,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        pop(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entered_labels_end_with_scope() {
        let labels = Labels::new()
            .with("route", "/search")
            .with("tenant", "acme");
        let outer = label("zone", "a");
        let of_outer = Labels::current();
        {
            let _entered = labels.enter();
            let both = of_outer
                .clone()
                .with("route", "/search")
                .with("tenant", "acme");
            assert_eq!(Labels::current(), both);
        }
        assert_eq!(Labels::current(), of_outer);
        drop(outer);
        assert_eq!(Labels::current(), Labels::new());
    }

    #[test]
    fn panic_ends_label() {
        let caught = std::panic::catch_unwind(|| {
            let _label = label("route", "/panics");
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(caught.is_err());
        assert_eq!(Labels::current(), Labels::new());
    }
}
