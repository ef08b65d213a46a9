//! Work on many items within a total time, where the work on some may never end.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Most threads: each may be stuck at one item.
const MAX_THREADS: usize = 16;

/// Times that are waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkLimits {
    /// Time without a result after which another thread goes on with the next item.
    pub(super) stuck: Duration,
    /// Time without a result after which the other items are given up.
    pub(super) silent: Duration,
    /// Total time.
    pub(super) total: Duration,
}

/// Results of the work, in no order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkResults<R> {
    pub(super) results: Vec<R>,
    /// Items without a result in time, in the order given.
    pub(super) unfinished: Vec<u32>,
}

/// Calls the work for each item, on a thread for each processor. Stops waiting when all items are done, when the total
/// time is over, or when no item was finished for the time `silent` of `limits`. `new_work` creates the work of each
/// thread. A thread that is stuck in an item is left behind: whenever no item was finished for the time `stuck`,
/// another thread is started, up to [`MAX_THREADS`].
pub(super) fn work_within_limits<R: Send + 'static, W: FnMut(u32) -> R + Send + 'static>(
    limits: WorkLimits,
    items: Vec<u32>,
    mut new_work: impl FnMut() -> W,
) -> WorkResults<R> {
    let end = Instant::now() + limits.total;
    let items: Arc<[u32]> = items.into();
    let next = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = channel();
    let mut start_thread = |sender: Sender<(u32, R)>| {
        let (items, next, mut work) = (Arc::clone(&items), Arc::clone(&next), new_work());
        thread::spawn(move || {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                // After the total time, nothing receives.
                if sender.send((*item, work(*item))).is_err() {
                    break;
                }
            }
        });
    };
    let mut thread_count = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_THREADS);
    (0..thread_count).for_each(|_| start_thread(sender.clone()));
    let mut last = Instant::now();
    let mut results = Vec::new();
    let mut unfinished: HashSet<u32> = items.iter().copied().collect();
    while !unfinished.is_empty() {
        let left = end
            .min(last + limits.silent)
            .saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.min(limits.stuck)) {
            Ok((item, result)) => {
                unfinished.remove(&item);
                results.push(result);
                last = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) if left.is_zero() => break,
            Err(RecvTimeoutError::Timeout) if thread_count < MAX_THREADS => {
                start_thread(sender.clone());
                thread_count += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let is_unfinished = |item: &&u32| unfinished.contains(item);
    WorkResults {
        unfinished: items.iter().filter(is_unfinished).copied().collect(),
        results,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works on `items`, of which `stuck` never end.
    fn check(items: &[u32], stuck: &'static [u32], total: Duration) {
        let limits = WorkLimits {
            stuck: Duration::from_millis(10),
            silent: total,
            total,
        };
        let mut worked = work_within_limits(limits, items.to_vec(), || {
            |item| {
                while stuck.contains(&item) {
                    thread::park();
                }
                item
            }
        });
        worked.results.sort_unstable();
        let is_stuck = |item: &&u32| stuck.contains(item);
        let expected = WorkResults {
            results: items
                .iter()
                .filter(|item| !is_stuck(item))
                .copied()
                .collect(),
            unfinished: items.iter().filter(is_stuck).copied().collect(),
        };
        assert_eq!(worked, expected);
    }

    #[test]
    fn items_behind_a_stuck_one_have_results() {
        let long = Duration::from_secs(60);
        check(&[], &[], long);
        check(&[1, 2, 3], &[], long);
        check(&[1, 2, 3, 4, 5], &[2, 4], Duration::from_millis(500));
    }
}
