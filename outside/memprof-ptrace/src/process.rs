//! Parsers of a process's files in /proc. They take bytes, so that files of other kernels can be tested.

mod kcmp;
mod stat;
mod status;
mod vfork;

pub use kcmp::{find_descriptor_tables, have_same_descriptor};
pub use stat::ProcStat;
pub use status::{FAULT_SIGNALS, ProcStatus, ProcessState, SeccompMode};
pub use vfork::count_memory_sharers;
pub(crate) use vfork::shares_memory_with_parent;

/// A file of /proc that lacks a field of proc(5), or has a malformed one; the field's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {0} is missing or malformed")]
pub struct MalformedProcFile(pub &'static str);
