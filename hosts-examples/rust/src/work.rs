//! What the example hosts do: 2 MB/s stay in a cache, and requests come and go.

use std::hint::black_box;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(10);
/// 20 entries of 1 KiB each tick are 2 MB/s.
const ENTRIES_PER_TICK: usize = 20;
const ENTRY_SIZE: usize = 1024;
const REQUESTS_PER_TICK: usize = 200;

pub(crate) struct Worker {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

pub(crate) fn start() -> io::Result<Worker> {
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
    pub(crate) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            log::error!("the worker panicked");
        }
    }
}

/// The leak: entries that nothing ever removes.
#[inline(never)]
fn grow_cache(cache: &mut Vec<Box<[u8]>>) {
    for _ in 0..ENTRIES_PER_TICK {
        cache.push(vec![0; ENTRY_SIZE].into_boxed_slice());
    }
    black_box(&*cache);
}

/// Balanced: everything is freed at the end.
#[inline(never)]
fn handle_request(number: usize) {
    let request: Vec<u8> = Vec::with_capacity(256 + number % 4096);
    black_box(request);
}
