//! A value that is set once, without a lock.
#![expect(unsafe_code, reason = "a value behind an atomic pointer")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is set once. A child that is forked while a thread sets it finds it unset, and can set it: it does
/// not wait for that thread as it would with [`OnceLock`].
#[derive(Debug)]
pub struct LockFreeOnce<T> {
    /// Null, or a box.
    value: AtomicPtr<T>,
    /// It goes from thread to thread as there.
    marker: PhantomData<OnceLock<T>>,
}

impl<T> LockFreeOnce<T> {
    /// Not set yet.
    pub const fn new() -> Self {
        Self {
            value: AtomicPtr::new(ptr::null_mut()),
            marker: PhantomData,
        }
    }

    /// The value, if it was set.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: null, or a box that is neither changed nor freed while `self` lives.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Sets it, unless it was set before: the value that stays.
    pub fn get_or_set(&self, value: T) -> &T {
        let made = Box::into_raw(Box::new(value));
        let (kept, refused) = (Ordering::AcqRel, Ordering::Acquire);
        let before = self
            .value
            .compare_exchange(ptr::null_mut(), made, kept, refused);
        let stays = before.map_or_else(
            |first| {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                first
            },
            |_| made,
        );
        // SAFETY: as in `get`; not null.
        unsafe { &*stays }
    }
}

impl<T> Default for LockFreeOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for LockFreeOnce<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: made by `keep`, and nobody borrows it any more.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_value_stays_and_each_is_dropped_once() {
        let [first, second] = [1, 2].map(Arc::new);
        let kept = LockFreeOnce::new();
        assert_eq!(kept.get(), None);
        assert_eq!(**kept.get_or_set(Arc::clone(&first)), 1);
        assert_eq!(**kept.get_or_set(Arc::clone(&second)), 1);
        assert_eq!(kept.get(), Some(&first));
        assert_eq!(Arc::strong_count(&second), 1);
        drop(kept);
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
