//! Limits of the names that a report reads, of all its processes together: each may have files that are made to take long,
//! and a report may be of many.

use std::time::{Duration, Instant};

/// Time in which the names of a report are read, of all files together; a unit of debug information that was begun is
/// finished. Hostile files may be made so that each unit takes seconds.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Most bytes of names that JIT compilers wrote, of all processes.
const MAX_JIT_NAME_BYTES: usize = 64 << 20;

/// Time and memory that are left for the names of a report.
#[derive(Debug)]
pub(crate) struct SymbolBudget {
    deadline: Instant,
    jit_name_bytes: usize,
}

impl SymbolBudget {
    /// Budget of a report that begins now.
    pub(crate) fn new() -> Self {
        Self {
            deadline: Instant::now() + TIME_LIMIT,
            jit_name_bytes: MAX_JIT_NAME_BYTES,
        }
    }

    /// Time at which no more files are begun.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        Instant::now() > self.deadline
    }

    /// Counts the name of JIT code. Returns whether it may be kept.
    pub(super) fn charge_jit_name(&mut self, name: &str) -> bool {
        let left = self.jit_name_bytes.checked_sub(name.len());
        self.jit_name_bytes = left.unwrap_or(0);
        left.is_some()
    }
}
