//! Sends this library's log lines and panics to the host.
//!
//! Uses no lock: if a child is forked while a thread of the parent logs, the child creates its own instance, and would
//! wait forever for that thread.
#![expect(
    unsafe_code,
    reason = "a logger that a fork does not interrupt, and the host behind an atomic pointer"
)]

use std::any::Any;
use std::marker::PhantomData;
use std::panic;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::raw::memprof_host_t;
use crate::{Host, escape_controls};

/// Address of the host's struct from `create` to `destroy`; null at other times.
static HOST: AtomicPtr<memprof_host_t> = AtomicPtr::new(ptr::null_mut());

/// Number of running calls of the host's log callbacks.
static IN_FLIGHT: InFlightCalls = InFlightCalls::new();

/// Time between two checks for running calls.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Id of the plugin that a library contains: the target of its log lines.
pub(crate) trait LogTarget: Send + Sync + 'static {
    const TARGET: &'static str;
}

/// Sends the log lines and panics of this library, which contains plugin `P`, to `host`. A later call only replaces the
/// host.
///
/// # Safety
/// Only one thread of the process may call it at a time.
pub(crate) unsafe fn set_host<P: LogTarget>(host: Host) {
    HOST.store(host.address().as_ptr(), Ordering::SeqCst);
    // Not `set_logger`: in a forked child, it would wait for a thread of the parent that was just setting the logger.
    // SAFETY: the caller guarantees one thread at a time, and nothing else in this library sets a logger.
    let set = unsafe { log::set_logger_racy(HostLogger::<P>::LOGGER) };
    // `set` is an error if the logger is already set, because `create` was called before.
    if set.is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
        // The default hook prints to stderr. If stderr is a broken pipe, that would kill the host.
        panic::set_hook(Box::new(|info| log_panic(P::TARGET, info)));
    }
}

/// Logs a panic of plugin `id`, with its thread, code location and text.
fn log_panic(id: &str, info: &panic::PanicHookInfo<'_>) {
    let thread = describe_thread();
    let text = panic_text(info.payload());
    match info.location() {
        Some(location) => log::error!("plugin {id} panicked in {thread} at {location}: {text}"),
        None => log::error!("plugin {id} panicked in {thread}: {text}"),
    }
}

/// Describes the calling thread by its name in quotes: that of Rust if this library created the thread, otherwise the
/// kernel's. `a thread without a name` if the name is empty or cannot be read.
fn describe_thread() -> String {
    let own = thread::current().name().map(str::to_owned);
    let name = own.unwrap_or_else(|| {
        let name = std::fs::read("/proc/thread-self/comm").unwrap_or_default();
        String::from_utf8_lossy(&name).trim_end().to_owned()
    });
    match name.as_str() {
        "" => "a thread without a name".to_owned(),
        name => format!("thread {name:?}"),
    }
}

/// Returns the text of a panic's payload, or `no message` if the payload is not a text.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Clears the host, and blocks until all log calls into it have returned. Afterwards the host may free its context.
pub(crate) fn clear_host() {
    HOST.store(ptr::null_mut(), Ordering::SeqCst);
    while IN_FLIGHT.has_calls_in_flight(process::id()) {
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the host, from `create` to `destroy`. `None` at other times.
pub(crate) fn host() -> Option<Host> {
    let address = NonNull::new(HOST.load(Ordering::SeqCst))?;
    // SAFETY: `set_host` stored the address of a host. It is valid until `clear_host` has returned.
    Some(unsafe { Host::from_address(address) })
}

/// Number of running calls, packed with the pid of their process. A forked child does not have the calls of its parent.
#[derive(Debug)]
struct InFlightCalls(AtomicU64);

impl InFlightCalls {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts a call that begins in the process with id `own`. Replaces a count inherited from the parent by 1.
    fn add_call(&self, own: u32) {
        self.update(|state| match count_for_process(state, own) {
            0 => u64::from(own) << 32 | 1,
            _ => state + 1,
        });
    }

    /// Counts the end of a call in the process with id `own`. Does nothing if no call is counted: then the thread began
    /// its call in the parent, and forked this process during the call.
    fn remove_call(&self, own: u32) {
        self.update(|state| match count_for_process(state, own) {
            0 => state,
            _ => state - 1,
        });
    }

    /// Returns whether a call is running in the process with id `own`.
    fn has_calls_in_flight(&self, own: u32) -> bool {
        count_for_process(self.0.load(Ordering::SeqCst), own) > 0
    }

    /// Replaces the packed pid and count atomically by the result of `change`, which may be called several times.
    fn update(&self, change: impl Fn(u64) -> u64) {
        let changed = |state| Some(change(state));
        // Cannot fail, because `changed` always returns a value.
        let _before = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
    }
}

/// Returns the number of calls in the packed `state`; 0 if it belongs to a process other than `own`.
fn count_for_process(state: u64, own: u32) -> u32 {
    let (process, calls) = ((state >> 32) as u32, state as u32);
    if process == own { calls } else { 0 }
}

/// Guard of one running call, counted in [`IN_FLIGHT`] until it is dropped.
struct InFlightCall(());

impl InFlightCall {
    /// Counts a call into the host, which begins now, until the guard is dropped.
    fn start() -> Self {
        IN_FLIGHT.add_call(process::id());
        Self(())
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        IN_FLIGHT.remove_call(process::id());
    }
}

/// Logger of plugin `P`'s library, which forwards to the host. Each line has the plugin's id as its target, whatever
/// module logs it, as memprof.h says.
struct HostLogger<P>(PhantomData<P>);

impl<P: LogTarget> HostLogger<P> {
    const LOGGER: &'static Self = &Self(PhantomData);

    /// Calls `work` with the host, from `create` to `destroy`; does nothing at other times. The host stays valid during
    /// the call, because [`clear_host`] waits until the call has returned.
    fn with_host(work: impl FnOnce(&Host)) {
        // The call is counted before the host is read, because `clear_host` clears the host before it reads the count.
        let _call = InFlightCall::start();
        if let Some(host) = host() {
            work(&host);
        }
    }
}

impl<P: LogTarget> log::Log for HostLogger<P> {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let mut enabled = false;
        Self::with_host(|host| enabled = host.log_enabled(metadata.level()));
        enabled
    }

    fn log(&self, record: &log::Record<'_>) {
        Self::with_host(|host| {
            if !host.log_enabled(record.level()) {
                return;
            }
            let text = match record.args().as_str() {
                Some(text) => escape_controls(text),
                None => escape_controls(&record.args().to_string())
                    .into_owned()
                    .into(),
            };
            host.log(record.level(), P::TARGET, &text);
        });
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_does_not_wait_for_calls_of_parent() {
        let calls = InFlightCalls::new();
        let (parent, child) = (7, 8);
        calls.add_call(parent);
        calls.add_call(parent);
        assert!(calls.has_calls_in_flight(parent));
        assert!(!calls.has_calls_in_flight(child));
        // The thread that forked ends a call that it began before.
        calls.remove_call(child);
        assert!(!calls.has_calls_in_flight(child));
        calls.add_call(child);
        assert!(calls.has_calls_in_flight(child));
        calls.remove_call(child);
        assert!(!calls.has_calls_in_flight(child));
    }

    #[test]
    fn calls_are_in_flight_until_all_have_ended() {
        let calls = InFlightCalls::new();
        calls.add_call(7);
        calls.add_call(7);
        calls.remove_call(7);
        assert!(calls.has_calls_in_flight(7));
        calls.remove_call(7);
        assert!(!calls.has_calls_in_flight(7));
    }
}
