//! The dump slot: at most one dump runs at a time.

use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::dumper::Dumper;
use crate::error::{Error, ErrorKind, Result};

/// Minimum of the expected size of a dump, in bytes: enough for some thousand stacks.
const MIN_EXPECTED_BYTES: u64 = 4 << 20;

/// The dumper thread, the owner of the slot, and figures about earlier dumps.
#[derive(Debug, Default)]
pub(super) struct DumpSlot {
    /// Thread that takes the dumps.
    pub(super) dumper: Dumper,
    /// Pid of the process in which a dump runs; 0 if none runs. A forked child inherits the value, but not the dump.
    owner: AtomicU32,
    sequence: AtomicU32,
    last_size: AtomicU64,
}

/// Guard that occupies the slot, and therefore the only dump that may hold an allocator's dump lock.
pub(super) struct DumpGuard<'a>(&'a AtomicU32);

impl DumpSlot {
    /// Acquires the slot until the guard is dropped. Does not wait.
    ///
    /// # Errors
    /// `Busy`: a dump is running.
    pub(super) fn acquire(&self) -> Result<DumpGuard<'_>> {
        let own = process::id();
        let claimed = self
            .owner
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |owner| {
                // 0 means free. Another pid is the parent's, whose dump does not run in this forked child.
                (owner != own).then_some(own)
            });
        match claimed {
            Ok(_) => Ok(DumpGuard(&self.owner)),
            Err(_) => {
                Err(Error::new(ErrorKind::Busy, "a dump is running").with_remedy("try again"))
            }
        }
    }

    /// Whether a dump is running in this process.
    pub(super) fn is_busy(&self) -> bool {
        self.owner.load(Ordering::Acquire) == process::id()
    }

    /// Increments and returns the sequence number, which is 1 for the first dump of this process.
    pub(super) fn increment_sequence(&self) -> u32 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Expected bytes of the next dump if the allocator gives no estimate: twice the last dump, but at least 4 MiB.
    pub(super) fn expected_dump_bytes(&self) -> u64 {
        let last = self.last_size.load(Ordering::Relaxed);
        last.saturating_mul(2).max(MIN_EXPECTED_BYTES)
    }

    /// Records the size of the last dump in bytes, for [`expected_dump_bytes`](Self::expected_dump_bytes).
    pub(super) fn record_dump_size(&self, bytes: u64) {
        self.last_size.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for DumpGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
