//! Parallel map over a slice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

/// Largest number of threads: each waits for a host, and may hold a line of a megabyte.
const MAX_THREADS: usize = 64;

/// Calls `work` for each item, on the calling thread and at most 63 others. Returns the results in the order of the
/// items.
pub(super) fn parallel_map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else {
                return;
            };
            let result = work(item);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((index, result));
        }
    };
    scope(|scope| {
        for _ in 1..items.len().min(MAX_THREADS) {
            // If no more threads can be created, fewer threads do the work.
            if Builder::new().spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
        worker();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_map_preserves_order() {
        let check = |count: usize| {
            let items: Vec<_> = (0..count).collect();
            let doubled: Vec<_> = items.iter().map(|item| item * 2).collect();
            assert_eq!(parallel_map(&items, |item| item * 2), doubled);
        };
        [0, 1, 2, MAX_THREADS, 1000].into_iter().for_each(check);
    }
}
