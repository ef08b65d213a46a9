//! What holds objects from outside of the heap.

use std::fs;
use std::ops::Range;

use crate::analysis::AnalyzedSnapshot;
use crate::names::{NameResolver, Variable};
use crate::regions::Region;
use crate::resident_pages::PAGE;

/// Where a pointer lies that is in no object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// In a variable of a file's, or where the file has no symbol.
    Variable {
        /// As the programmer wrote it, or the file and the place in it.
        name: String,
        /// The file's name.
        file: String,
    },
    /// On the stack of a thread, where its thread-local variables lie too.
    Stack {
        /// The thread's number (TID).
        thread: u32,
        /// The thread's name (`/proc/PID/task/TID/comm`).
        name: String,
    },
    /// In memory that is no heap which is known here, of so many bytes.
    Memory {
        /// Its first address.
        start: u64,
        /// In bytes.
        size: u64,
        /// As the kernel names it; mostly nothing.
        name: String,
    },
    /// In a register of a thread.
    Registers {
        /// The thread's number (TID).
        thread: u32,
        /// The thread's name (`/proc/PID/task/TID/comm`).
        name: String,
    },
    /// With a descriptor of epoll(7) or a timer.
    Kernel,
}

impl Holder {
    /// Whose objects are told to be theirs first.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Variable { .. } => 0,
            Self::Stack { .. } => 1,
            Self::Memory { .. } => 2,
            Self::Registers { .. } => 3,
            Self::Kernel => 4,
        }
    }
}

/// Whose an address outside of the heap is, and which addresses from there on are the same holder's. Words without a
/// symbol are variables of their own, or where `is_exact` is not, those of a page are one.
pub(super) fn holder_of(
    seen: &AnalyzedSnapshot<'_>,
    names: &mut NameResolver<'_>,
    address: u64,
    is_exact: bool,
) -> (Holder, Range<u64>) {
    if let Some(mut variable) = names.variable(address) {
        let mut end = address + variable.rest.max(8);
        if variable.rest == 0 && !is_exact {
            let within = address % PAGE;
            end = address - within + PAGE;
            variable.offset = variable.offset.saturating_sub(within);
        }
        let (name, Variable { file, .. }) = (variable.shown(), variable);
        return (Holder::Variable { name, file }, address..end);
    }
    let region = seen.view.region(address);
    let (range, name) = region.map_or((address..address, ""), |region| {
        let Region { range, name, .. } = region;
        (range.clone(), name)
    });
    let threads = &seen.snapshot.threads;
    let on_it = threads
        .iter()
        .find(|thread| range.contains(&thread.stack) || range.contains(&thread.control_block));
    let holder = match on_it {
        Some(thread) => Holder::Stack {
            thread: thread.tid,
            name: name_of(seen, thread.tid),
        },
        None => Holder::Memory {
            start: range.start,
            size: range.end - range.start,
            name: name.to_owned(),
        },
    };
    (holder, range)
}

/// A thread that has ended meanwhile has no name.
pub(super) fn name_of(seen: &AnalyzedSnapshot<'_>, thread: u32) -> String {
    let pid = seen.snapshot.pid;
    let name = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
