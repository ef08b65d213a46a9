//! What /proc tells of a process. The parsers take text, so that files of other kernels can be read.

mod stat;
mod status;
mod vfork;

pub use stat::ProcStat;
pub use status::{ProcStatus, ProcessState, SeccompMode};
pub(crate) use vfork::shares_memory_with_parent;

/// A file of /proc that does not have the form of proc(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {0} is missing or malformed")]
pub struct MalformedProcFile(pub &'static str);
