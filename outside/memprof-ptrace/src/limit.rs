//! Limits of a process that an attachment counts towards, and the commands that raise them.

use std::fmt;

/// A limit of a process that an attachment counts towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Number of mappings of a process (`vm.max_map_count`).
    Mappings,
    /// Bytes of address space.
    Addresses,
    /// Bytes of private writable memory.
    Data,
    /// Bytes of locked memory.
    Locked,
    /// Number of open descriptors.
    Descriptors,
}

impl Limit {
    /// Returns the name in proc(5) or setrlimit(2).
    pub fn name(self) -> &'static str {
        match self {
            Self::Mappings => "vm.max_map_count",
            Self::Addresses => "RLIMIT_AS",
            Self::Data => "RLIMIT_DATA",
            Self::Locked => "RLIMIT_MEMLOCK",
            Self::Descriptors => "RLIMIT_NOFILE",
        }
    }

    /// Returns the mappings, bytes or descriptors by which the raised limit should exceed the needs of an attachment:
    /// room for the samples that follow, and for the program itself.
    pub(crate) fn headroom(self) -> u64 {
        match self {
            Self::Mappings => 1 << 10,
            Self::Addresses | Self::Data | Self::Locked => 128 << 20,
            Self::Descriptors => 64,
        }
    }

    /// Returns the shell command with which root raises the limit to `value`: of the running process `pid`, or of the
    /// whole system for mappings. `hard` is the hard limit (`None`: unlimited). The command keeps it if it is at least
    /// `value`, because only `CAP_SYS_RESOURCE` can raise a lowered hard limit again.
    pub fn raise_command(self, pid: u32, value: u64, hard: Option<u64>) -> String {
        let option = match self {
            Self::Mappings => return format!("sysctl vm.max_map_count={value}"),
            Self::Addresses => "as",
            Self::Data => "data",
            Self::Locked => "memlock",
            Self::Descriptors => "nofile",
        };
        // prlimit(1): a value alone sets both limits, one before a colon only the soft limit.
        let suffix = match hard.is_none_or(|hard| value <= hard) {
            true => ":",
            false => "",
        };
        format!("prlimit --pid {pid} --{option}={value}{suffix}")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
