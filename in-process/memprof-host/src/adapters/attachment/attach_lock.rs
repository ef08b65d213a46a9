//! The lock under which attachments of one process begin one after another: the thread of a killed `memprof attach`
//! may still attach when the next one begins.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use memprof_own::{ProcessLock, ProcessLockGuard};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_UNSUPPORTED;

use super::{ATTACHED, DETACHED, STATE};

/// Timeout of waiting until another attachment has begun or ended.
const OTHER_ATTACHMENT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Held while a thread attaches.
static ATTACHING: ProcessLock = ProcessLock::new();

/// Waits until no other thread attaches and the previous attachment has ended. Returns the lock, which the calling
/// thread holds while it attaches. Fails at once if the process is attached to, and after [`OTHER_ATTACHMENT_TIMEOUT`]
/// if it is still being attached to or detached from.
pub(super) fn lock_when_detached() -> Result<ProcessLockGuard<'static>, Failure> {
    let start = Instant::now();
    loop {
        let guard = ATTACHING.try_lock();
        let problem = match (guard, STATE.load(Ordering::Acquire)) {
            (Some(guard), DETACHED) => return Ok(guard),
            (Some(_), ATTACHED) => "it is attached already",
            _ if start.elapsed() < OTHER_ATTACHMENT_TIMEOUT => {
                thread::sleep(POLL_INTERVAL);
                continue;
            }
            (Some(_), _) => "it is still being detached",
            (None, _) => "an earlier `memprof attach` still starts the plugin",
        };
        return Err(Failure::new(MEMPROF_UNSUPPORTED, problem));
    }
}

/// Creates the error of a process in which the program itself, or another adapter, has loaded the plugin.
pub(super) fn loaded_by_program_error() -> Failure {
    let message = "the program has loaded the plugin itself";
    Failure::new(MEMPROF_UNSUPPORTED, message).remedy(
        "send messages by the program's own command, or start the program with a control socket: `control=on` in the \
         plugin's configuration (in Redis `control on`)",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn attachment_waits_for_one_that_another_thread_has_begun() {
        let first = lock_when_detached().unwrap();
        assert!(ATTACHING.try_lock().is_none());
        let (sender, events) = mpsc::channel();
        thread::scope(|scope| {
            let of_second = sender.clone();
            scope.spawn(move || {
                let turn = lock_when_detached().unwrap();
                of_second.send("the second begins").unwrap();
                drop(turn);
            });
            sender.send("the first ends").unwrap();
            drop(first);
        });
        drop(sender);
        let events: Vec<_> = events.iter().collect();
        assert_eq!(events, ["the first ends", "the second begins"]);
    }
}
