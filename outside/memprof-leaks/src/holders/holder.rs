//! Holders outside the heap.

use std::ops::Range;

use memprof_ptrace::read_proc_text;

use super::thread_memory::ThreadMemory;
use crate::analysis::AnalyzedSnapshot;
use crate::names::{NameResolver, Variable};
use crate::regions::Region;
use crate::resident_pages::PAGE_SIZE;

/// Memory outside the heap, or a kernel object, with pointers to objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// A variable of a Python module, or an attribute of a class in it.
    PythonVariable {
        /// `module.NAME` or `module.Class.NAME`; the module's name for its functions, classes and constants.
        name: String,
        /// Type of its value, `module` for a module's functions, classes and constants.
        class: String,
    },
    /// A variable of a file, or a part of the file without a symbol.
    Variable {
        /// Demangled name, or the file and the address in it.
        name: String,
        /// Name of the file, without its folders.
        file: String,
    },
    /// The stack of a thread, with its thread-local variables and the local variables of its functions in Python.
    Stack {
        /// Thread id (TID).
        thread: u32,
        /// Thread name (`/proc/PID/task/TID/comm`).
        name: String,
    },
    /// Other memory: a file that the program has mapped, or memory in no heap that memprof can read.
    Memory {
        /// Its first address.
        start: u64,
        /// Bytes.
        size: u64,
        /// Name in `/proc/PID/maps`; usually empty.
        name: String,
    },
    /// A register of a thread.
    Registers {
        /// Thread id (TID).
        thread: u32,
        /// Thread name (`/proc/PID/task/TID/comm`).
        name: String,
    },
    /// The kernel, for a descriptor of epoll(7) or a timer.
    Kernel,
}

impl Holder {
    /// Rank of the holder: an object is assigned to the holder of the lowest rank that reaches it.
    pub(super) fn rank(&self) -> u8 {
        match self {
            // The interpreter's own variables reach all those of the program.
            Self::PythonVariable { .. } => 0,
            Self::Variable { .. } => 1,
            Self::Stack { .. } => 2,
            Self::Memory { .. } => 3,
            Self::Registers { .. } => 4,
            Self::Kernel => 5,
        }
    }
}

/// Finds the holder of an address outside the heap, and the range of addresses from it on that belong to that holder.
/// The holder is the variable of a file that contains the address, else the thread to whose memory it belongs, else the
/// mapping. Where a file has no symbol, each word is a variable; or if not `is_exact`, each page is one.
pub(super) fn find_holder_at(
    analyzed: &AnalyzedSnapshot<'_>,
    names: &mut NameResolver<'_>,
    threads: &ThreadMemory,
    address: u64,
    is_exact: bool,
) -> (Holder, Range<u64>) {
    if let Some(mut variable) = names.variable_at(address) {
        let mut end = address + variable.rest.max(8);
        // `rest` is 0 without a symbol: then the variable is extended to its page.
        if variable.rest == 0 && !is_exact {
            let within = address % PAGE_SIZE;
            end = address - within + PAGE_SIZE;
            variable.offset = variable.offset.saturating_sub(within);
        }
        let (name, Variable { file, .. }) = (variable.display_name(), variable);
        return (Holder::Variable { name, file }, address..end);
    }
    let region = analyzed.view.region(address);
    let (range, name) = region.map_or((address..address, ""), |region| {
        let Region { range, name, .. } = region;
        (range.clone(), name)
    });
    let holder = match threads.owner_thread(address) {
        Some(thread) => Holder::Stack {
            thread,
            name: thread_name(analyzed, thread),
        },
        None => Holder::Memory {
            start: range.start,
            size: range.end - range.start,
            name: name.to_owned(),
        },
    };
    (holder, address..threads.next_boundary(address, range.end))
}

/// Name of a thread of the running process, not of its copy; empty if the thread has ended.
pub(super) fn thread_name(analyzed: &AnalyzedSnapshot<'_>, thread: u32) -> String {
    let pid = analyzed.snapshot.pid;
    let name = read_proc_text(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
