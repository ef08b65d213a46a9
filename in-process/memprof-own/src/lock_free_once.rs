//! A value that is set once, without a lock.
#![expect(unsafe_code, reason = "a value behind an atomic pointer")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is set once. If a child is forked while a thread sets it, the child finds it unset and can set it. With
/// [`OnceLock`], the child would wait for that thread forever.
#[derive(Debug)]
pub struct LockFreeOnce<T> {
    /// Null, or from [`Box::into_raw`].
    value: AtomicPtr<T>,
    /// Makes the type `Send` and `Sync` under the conditions of `OnceLock`.
    marker: PhantomData<OnceLock<T>>,
}

impl<T> LockFreeOnce<T> {
    /// Creates a cell whose value is not set.
    pub const fn new() -> Self {
        Self {
            value: AtomicPtr::new(ptr::null_mut()),
            marker: PhantomData,
        }
    }

    /// Returns the value. `None` if it is unset.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: null, or a box that `get_or_set` stored. It is neither changed nor freed while `self` is borrowed.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value unless it is already set. Returns the value that is stored now.
    pub fn get_or_set(&self, value: T) -> &T {
        let new = Box::into_raw(Box::new(value));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let exchanged = self
            .value
            .compare_exchange(ptr::null_mut(), new, success, failure);
        let current = exchanged.map_or_else(
            |first| {
                // SAFETY: the box was not stored, so no other thread has its address.
                drop(unsafe { Box::from_raw(new) });
                first
            },
            |_| new,
        );
        // SAFETY: not null, and neither changed nor freed while `self` is borrowed.
        unsafe { &*current }
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
            // SAFETY: the box is from `get_or_set`, and `&mut self` proves that nothing borrows it.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn first_value_stays_and_each_drops_once() {
        let [first, second] = [1, 2].map(Arc::new);
        let once = LockFreeOnce::new();
        assert_eq!(once.get(), None);
        assert_eq!(**once.get_or_set(Arc::clone(&first)), 1);
        assert_eq!(**once.get_or_set(Arc::clone(&second)), 1);
        assert_eq!(once.get(), Some(&first));
        assert_eq!(Arc::strong_count(&second), 1);
        drop(once);
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
