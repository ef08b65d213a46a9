//! The place for the one dump that may run.

use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::dumper::Dumper;
use crate::error::{Error, ErrorKind, Result};

/// What the first dump of an allocator is taken to need that tells nothing: some thousand stacks.
const UNKNOWN_SIZE: u64 = 4 << 20;

/// Who dumps, and what was dumped.
#[derive(Debug, Default)]
pub(super) struct DumpSlot {
    /// The thread that does it.
    pub(super) dumper: Dumper,
    /// The pid of the process in which a dump runs; a forked child inherits the value, not the
    /// dump.
    owner: AtomicU32,
    sequence: AtomicU32,
    last_size: AtomicU64,
}

/// Marks the time during which an allocator's dump lock may be held.
pub(super) struct DumpGuard<'a>(&'a AtomicU32);

impl DumpSlot {
    /// Takes the place, until the result is dropped.
    ///
    /// # Errors
    /// `Busy`: somebody has it.
    pub(super) fn acquire(&self) -> Result<DumpGuard<'_>> {
        let own = process::id();
        let claimed = self
            .owner
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |owner| {
                (owner != own).then_some(own)
            });
        match claimed {
            Ok(_) => Ok(DumpGuard(&self.owner)),
            Err(_) => Err(Error::new(ErrorKind::Busy, "a dump is running").remedy("try again")),
        }
    }

    /// Whether somebody has it.
    pub(super) fn is_busy(&self) -> bool {
        self.owner.load(Ordering::Acquire) == process::id()
    }

    /// The number of the next dump of this process, from 1.
    pub(super) fn next_number(&self) -> u32 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The bytes that a dump may take whose allocator does not tell, by the one before.
    pub(super) fn expected_bytes(&self) -> u64 {
        let last = self.last_size.load(Ordering::Relaxed);
        last.saturating_mul(2).max(UNKNOWN_SIZE)
    }

    /// A dump took so many bytes.
    pub(super) fn record_size(&self, bytes: u64) {
        self.last_size.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for DumpGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
