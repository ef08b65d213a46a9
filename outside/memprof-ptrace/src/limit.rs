//! Limits of a process, and how each is raised.

use std::fmt;

/// A limit of a process that an attachment counts towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The number of mappings that the kernel lets any process have.
    Mappings,
    /// Bytes of addresses.
    Addresses,
    /// Bytes of private writable memory.
    Data,
    /// Bytes that stay in memory.
    Locked,
    /// Descriptors.
    Descriptors,
}

impl Limit {
    /// As proc(5) and setrlimit(2) call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mappings => "vm.max_map_count",
            Self::Addresses => "RLIMIT_AS",
            Self::Data => "RLIMIT_DATA",
            Self::Locked => "RLIMIT_MEMLOCK",
            Self::Descriptors => "RLIMIT_NOFILE",
        }
    }

    /// How much more than an attachment takes it is to be raised, for what is sampled and for the program itself.
    pub(crate) fn spare(self) -> u64 {
        match self {
            Self::Mappings => 1 << 10,
            Self::Addresses | Self::Data | Self::Locked => 128 << 20,
            Self::Descriptors => 64,
        }
    }

    /// The command by which root raises it for a process that runs. A hard limit that suffices stays: one that is lowered
    /// can be raised again only with `CAP_SYS_RESOURCE`.
    pub fn raise(self, pid: u32, to: u64, hard: Option<u64>) -> String {
        let option = match self {
            Self::Mappings => return format!("sysctl vm.max_map_count={to}"),
            Self::Addresses => "as",
            Self::Data => "data",
            Self::Locked => "memlock",
            Self::Descriptors => "nofile",
        };
        // prlimit(1): a value alone sets both limits, one before a colon the soft limit.
        let kept = match hard.is_none_or(|hard| to <= hard) {
            true => ":",
            false => "",
        };
        format!("prlimit --pid {pid} --{option}={to}{kept}")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
