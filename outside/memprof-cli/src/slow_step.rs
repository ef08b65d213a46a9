//! A progress line for a step that is usually over at once: a process with thousands of runnable threads answers each
//! of memprof's requests seconds later.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::output;

/// Interval after which the line appears, and is then renewed.
const INTERVAL: Duration = Duration::from_secs(2);

/// Intervals after which a script's stderr gets a line.
const LOGGED: u32 = 5;

/// A step that shows how long it takes, until it is dropped.
#[derive(Debug)]
pub(crate) struct SlowStep {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<u32>>,
}

impl SlowStep {
    /// Begins a step that the terminal shows under `name`, and starts the thread that shows it. If no thread can be
    /// created, nothing is shown.
    pub(crate) fn begin(name: String) -> Self {
        let (end, ended) = channel();
        let thread = thread::Builder::new().name("progress".to_owned());
        let thread = thread.spawn(move || show_elapsed(&name, &ended, INTERVAL));
        Self {
            end: Some(end),
            thread: thread.ok(),
        }
    }
}

/// Shows the time that a step takes after each `interval`, until the channel `ended` is closed. Every [`LOGGED`] times,
/// also writes the time to a script's stderr. Returns how often it was shown.
fn show_elapsed(name: &str, ended: &Receiver<()>, interval: Duration) -> u32 {
    let start = Instant::now();
    let mut times = 0;
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let text = format!("{name}: {} s", start.elapsed().as_secs());
        output::show_progress(&text);
        times += 1;
        if times % LOGGED == 0 {
            output::log_progress(&text);
        }
    }
    if times > 0 {
        output::clear_progress();
    }
    times
}

impl Drop for SlowStep {
    /// Ends the step: removes its line, and waits for the thread that shows it.
    fn drop(&mut self) {
        // The thread ends when its channel is closed.
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by its hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_that_is_over_is_not_shown() {
        let (end, ended) = channel();
        drop(end);
        assert_eq!(show_elapsed("waiting", &ended, Duration::ZERO), 0);
    }
}
