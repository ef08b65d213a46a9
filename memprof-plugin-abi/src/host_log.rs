//! The host that this library's log lines and panics go to.
//!
//! No lock: a child that is forked while a thread of the parent logs makes an instance of its own, and would wait
//! for that thread.
#![expect(
    unsafe_code,
    reason = "a logger that a fork does not interrupt, and the host behind an atomic pointer"
)]

use std::panic;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::Host;
use crate::raw::memprof_host_t;

/// From `create` to `destroy`; else null.
static HOST: AtomicPtr<memprof_host_t> = AtomicPtr::new(ptr::null_mut());

/// The calls of the host's that are under way.
static CALLS: InFlightCalls = InFlightCalls::new();

const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Sends this library's log lines and panics to `host`.
///
/// # Safety
/// One thread of the process at a time calls it.
pub(crate) unsafe fn set_host(host: Host) {
    HOST.store(host.address().as_ptr(), Ordering::SeqCst);
    // `set_logger` would wait in a forked child for a thread of the parent's that was just setting it.
    // SAFETY: one thread at a time, as the caller promises; nobody else sets a logger of this library.
    let set = unsafe { log::set_logger_racy(&HostLogger) };
    // Refused when this library has a logger already, as after a second `create`: it is ours.
    if set.is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
        // The default hook prints to stderr; with a broken pipe there, that kills the host.
        panic::set_hook(Box::new(|info| log::error!("{info}")));
    }
}

/// Returns when no call of the host's is under way, which may free what it needs for them.
pub(crate) fn clear_host() {
    HOST.store(ptr::null_mut(), Ordering::SeqCst);
    while CALLS.any_in_flight(process::id()) {
        thread::sleep(LOOK_AGAIN);
    }
}

/// The host, from `create` to `destroy`.
pub(crate) fn host() -> Option<Host> {
    let address = NonNull::new(HOST.load(Ordering::SeqCst))?;
    // SAFETY: `attach` stored it.
    Some(unsafe { Host::at(address) })
}

/// How many calls are under way, of one process: a forked child has none of its parent's.
#[derive(Debug)]
struct InFlightCalls(AtomicU64);

impl InFlightCalls {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// One more of process `own`.
    fn begin(&self, own: u32) {
        self.change(|known| match count_for_process(known, own) {
            0 => u64::from(own) << 32 | 1,
            _ => known + 1,
        });
    }

    /// One fewer. It may be one that a thread began before it forked this process.
    fn end(&self, own: u32) {
        self.change(|known| match count_for_process(known, own) {
            0 => known,
            _ => known - 1,
        });
    }

    fn any_in_flight(&self, own: u32) -> bool {
        count_for_process(self.0.load(Ordering::SeqCst), own) > 0
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        let changed = |known| Some(change(known));
        // It never fails.
        let _before = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
    }
}

/// How many of `known` are of process `own`.
fn count_for_process(known: u64, own: u32) -> u32 {
    let (process, calls) = ((known >> 32) as u32, known as u32);
    if process == own { calls } else { 0 }
}

/// One of the [`CALLS`], until it is dropped.
struct InFlightCall(());

impl InFlightCall {
    fn begin() -> Self {
        CALLS.begin(process::id());
        Self(())
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        CALLS.end(process::id());
    }
}

struct HostLogger;

impl HostLogger {
    fn with(work: impl FnOnce(&Host)) {
        // Before the host is looked for: `detach` looks in the other order.
        let _call = InFlightCall::begin();
        if let Some(host) = host() {
            work(&host);
        }
    }
}

impl log::Log for HostLogger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let mut enabled = false;
        Self::with(|host| enabled = host.log_enabled(metadata.level()));
        enabled
    }

    fn log(&self, record: &log::Record<'_>) {
        Self::with(|host| {
            if !host.log_enabled(record.level()) {
                return;
            }
            match record.args().as_str() {
                Some(text) => host.log(record.level(), record.target(), text),
                None => host.log(record.level(), record.target(), &record.args().to_string()),
            }
        });
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_calls_of_the_process_that_forked_this_one() {
        let calls = InFlightCalls::new();
        let (parent, child) = (7, 8);
        calls.begin(parent);
        calls.begin(parent);
        assert!(calls.any_in_flight(parent));
        assert!(!calls.any_in_flight(child));
        // The thread that forked ends what it began before.
        calls.end(child);
        assert!(!calls.any_in_flight(child));
        calls.begin(child);
        assert!(calls.any_in_flight(child));
        calls.end(child);
        assert!(!calls.any_in_flight(child));
    }

    #[test]
    fn the_host_is_let_go_when_each_call_has_ended() {
        let calls = InFlightCalls::new();
        calls.begin(7);
        calls.begin(7);
        calls.end(7);
        assert!(calls.any_in_flight(7));
        calls.end(7);
        assert!(!calls.any_in_flight(7));
    }
}
