//! Threads of the process on errands.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use libc::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, SYS_mmap};
use memprof_ptrace::Refusal;
use memprof_ptrace::errand::{Call, Places, errand};
use memprof_ptrace::threads::system_call;

use crate::error::Error;
use crate::safe_point::{Borrowed, NotBorrowed, borrow};
use crate::target::Target;

/// Until a borrowed thread has made its calls: they do not wait.
pub(crate) const ERRAND: Duration = Duration::from_secs(5);
pub(crate) const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// So many threads are tried that do not stop: each costs a second.
const SLEEPERS: usize = 4;

const WRITING: &str = "failed to write to its memory";

/// Maps memory that belongs to no file, where nothing is mapped.
pub(crate) fn map(address: u64, length: u64, protection: i32) -> Call {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let no_file = u64::MAX;
    Call::System(
        SYS_mmap,
        [address, length, protection as u64, flags as u64, no_file, 0],
    )
}

/// A thread on its way.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) tid: u32,
    /// Where its stack is when it is back.
    stack: u64,
    /// How long it stood still.
    pub(crate) stop: Duration,
}

/// Sends a thread on an errand.
pub(crate) fn send(
    target: &mut Target,
    calls: &[Call],
    stack: Option<u64>,
    blocked: u64,
) -> Result<Sent, Error> {
    let mut avoided = Vec::new();
    loop {
        // A thread of its own each time: whatever it has stopped, or is about to, is let go when it ends.
        let sent = thread::scope(|scope| {
            let tries = || send_one(target, calls, stack, blocked, &avoided);
            scope.spawn(tries).join()
        });
        match sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(sent) => return Ok(sent),
            Err(NotBorrowed::Sleeps(_)) if avoided.len() == SLEEPERS => {
                let reason = "its threads do not stop (state D)".to_owned();
                return Err(Refusal::NoSafePoint { reason }.into());
            }
            Err(NotBorrowed::Sleeps(tid)) => avoided.push(tid),
            Err(NotBorrowed::None(error)) => return Err(error),
        }
    }
}

/// Borrows a thread that is none of the `avoided` ones.
fn send_one(
    target: &mut Target,
    calls: &[Call],
    stack: Option<u64>,
    blocked: u64,
    avoided: &[u32],
) -> Result<Sent, NotBorrowed> {
    let at_home = if stack.is_some() { 0 } else { calls.len() };
    let borrowed = borrow(target, at_home, avoided)?;
    let places = Places {
        home: borrowed.end,
        calls: stack,
    };
    let errand = errand(calls, places, blocked, target.gadgets, &borrowed.home());
    for (address, bytes) in &errand.writes {
        let written = target.memory.write(*address, bytes);
        written.map_err(|cause| not_written(target, cause))?;
    }
    let Borrowed {
        tid,
        stopped,
        registers,
        ..
    } = borrowed;
    let since = stopped.since();
    let left = stopped.leave_to(&errand.registers);
    left.map_err(|_| target.gone())?;
    Ok(Sent {
        tid,
        stack: registers.rsp,
        stop: since.elapsed(),
    })
}

pub(crate) fn not_written(target: &Target, cause: io::Error) -> Error {
    let failed = |()| Error::io(WRITING)(cause);
    target.require_same().map_or_else(|gone| gone, failed)
}

/// Until a thread that was sent to map memory has mapped the page at `address`.
pub(crate) fn wait_until_mapped(target: &Target, address: u64, sent: &Sent) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        // Looked at first: once it is back, its calls are made.
        let call = system_call(target.pid, sent.tid);
        let is_back = call.is_some_and(|call| call.stack == sent.stack);
        let is_mapped = target.memory.word(address).is_ok();
        if is_mapped {
            return Ok(());
        }
        target.require_same()?;
        if is_back || begun.elapsed() > ERRAND {
            let message = "it could not map memory: is there a limit on its addresses (RLIMIT_AS)?";
            return Err(Error::Failed(message.to_owned()));
        }
        thread::sleep(LOOK_AGAIN);
    }
}
