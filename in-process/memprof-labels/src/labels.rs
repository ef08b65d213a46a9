//! Labels for the time of a scope.

use std::marker::PhantomData;

use crate::record::{Mark, encode_label, encoded, pop, push, push_encoded};

/// Labels what the calling thread allocates until the guard is dropped, beside the labels that it has. Of the same
/// key the inner one counts.
///
/// Guards are dropped in the reverse order, as scopes do by themselves. In `async` code the thread changes at each
/// `.await`: see [`labelled`](crate::Label::labelled).
#[must_use = "the label ends where this is dropped"]
pub fn label(key: &str, value: &str) -> Entered {
    Entered::from(push(key, value))
}

/// Labels that are made once and worn often: by a request, a tenant, a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    encoded: Vec<u8>,
}

impl Labels {
    /// None.
    pub const fn new() -> Self {
        Self {
            encoded: Vec::new(),
        }
    }

    /// Those that the calling thread has: for work that it hands to another thread or task.
    pub fn current() -> Self {
        Self { encoded: encoded() }
    }

    /// With one more; of the same key the later one counts. A value is cut after 255 bytes.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        if let Some((head, value)) = encode_label(key, value) {
            self.encoded.extend(head);
            self.encoded.extend(value);
        }
        self
    }

    /// As [`label`], all of them.
    #[must_use = "the labels end where this is dropped"]
    pub fn enter(&self) -> Entered {
        Entered::from(push_encoded(&self.encoded))
    }
}

/// The calling thread has labels until this is dropped.
#[derive(Debug)]
pub struct Entered {
    before: Mark,
    /// A label belongs to the thread that pushed it: not `Send`.
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
    fn a_scope_wears_what_was_made_before() {
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
    fn a_panic_ends_its_labels() {
        let caught = std::panic::catch_unwind(|| {
            let _label = label("route", "/panics");
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(caught.is_err());
        assert_eq!(Labels::current(), Labels::new());
    }
}
