//! The work of the example hosts: 2 MB/s are added to a cache, and requests allocate and free.

use std::hint::black_box;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Interval between two rounds of work.
const TICK: Duration = Duration::from_millis(10);
/// Entries that are added to the cache in each round: 20 of 1 KiB are 2 MB/s.
const ENTRIES_PER_TICK: usize = 20;
/// Size of an entry in bytes.
const ENTRY_SIZE: usize = 1024;
/// Requests that are handled in each round.
const REQUESTS_PER_TICK: usize = 200;

/// A running worker thread.
pub(crate) struct Worker {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Starts a thread that grows a cache and handles requests until it is stopped, in rounds of 10 ms. Fails if no thread
/// can be created.
pub(crate) fn start_worker() -> io::Result<Worker> {
    let (stop, stopped) = mpsc::channel();
    let thread = Builder::new().name("worker".into()).spawn(move || {
        let mut cache = Vec::new();
        while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            grow_cache(&mut cache);
            (0..REQUESTS_PER_TICK).for_each(handle_request);
        }
    })?;
    Ok(Worker { stop, thread })
}

impl Worker {
    /// Stops the thread and waits for its end. Logs an error if the thread panicked.
    pub(crate) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            log::error!("the worker panicked");
        }
    }
}

/// Leaks: adds [`ENTRIES_PER_TICK`] entries, which are never removed.
#[inline(never)]
fn grow_cache(cache: &mut Vec<Box<[u8]>>) {
    for _ in 0..ENTRIES_PER_TICK {
        cache.push(vec![0; ENTRY_SIZE].into_boxed_slice());
    }
    black_box(&*cache);
}

/// Allocates a buffer, whose size depends on `number`, and frees it.
#[inline(never)]
fn handle_request(number: usize) {
    let request: Vec<u8> = Vec::with_capacity(256 + number % 4096);
    black_box(request);
}
