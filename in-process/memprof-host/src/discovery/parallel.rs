//! The same work on many things at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

/// At most so many at a time: each waits for a host, and may hold a line of a megabyte.
const THREADS: usize = 64;

/// Does `work` on each of `items`; the results stand in their order.
pub(super) fn parallel_map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return;
            };
            let result = work(item);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((at, result));
        }
    };
    scope(|scope| {
        for _ in 1..items.len().min(THREADS) {
            // Where no more threads can be had, fewer do it.
            if Builder::new().spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
        worker();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_once_and_in_order() {
        let check = |count: usize| {
            let items: Vec<_> = (0..count).collect();
            let doubled: Vec<_> = items.iter().map(|item| item * 2).collect();
            assert_eq!(parallel_map(&items, |item| item * 2), doubled);
        };
        [0, 1, 2, THREADS, 1000].into_iter().for_each(check);
    }
}
