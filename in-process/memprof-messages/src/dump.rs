//! Replies about dumps.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{EarlyEndReason, OpenEnum, ProfileKind, TriggerKind};

/// A dump that was taken and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dump {
    /// Id of the dump, for the argument of `fetch`.
    pub id: String,
    /// Data in the dump.
    pub kind: OpenEnum<ProfileKind>,
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of stacks in the dump.
    pub stacks: u64,
    /// Mean bytes between samples; 0 if the profile is not sampled.
    pub sample_interval: u64,
    /// Bytes in use, estimated from the samples. In a growth profile, the bytes of growth; in a profile of pinned
    /// slabs, the free bytes beside live objects.
    pub estimated_inuse_bytes: u64,
    /// Allocator with its version, such as `jemalloc 5.3.0`.
    pub allocator: String,
    /// Memory that the samples occupy in the process, in bytes: the tables of memprof's sampler, or the internal memory
    /// of jemalloc's arenas, which contains jemalloc's samples. Absent if the allocator does not report it.
    pub metadata_bytes: Option<u64>,
    /// Frees that memprof's sampler did not see, so that the dump shows freed memory as in use. Absent if there is no
    /// sign of any.
    #[serde(default)]
    pub unseen_frees: Option<UnseenFrees>,
    /// Bytes in use that memprof's sampler did not see when they were allocated, so that the dump lacks them. Absent if
    /// there is no sign of any.
    #[serde(default)]
    pub unseen_allocation_bytes: Option<u64>,
    /// Samples of memprof's sampler whose stacks lack their outermost frames, largest counts first.
    #[serde(default)]
    pub early_ends: Vec<EarlyEnds>,
    /// Longest time in milliseconds for which threads that allocated may have waited for the allocator, which holds locks
    /// of its profiler while it writes. Absent with memprof's sampler, which lets them go on.
    #[serde(default)]
    pub stall_ms: Option<u64>,
}

/// Samples whose stacks end early for one reason in one object, including samples freed since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EarlyEnds {
    /// Reason why the stacks end early.
    pub reason: OpenEnum<EarlyEndReason>,
    /// File of the code at which they end. Absent if the code is in no file, or if the stacks have too many frames.
    pub object: Option<PathBuf>,
    /// Number of samples.
    pub samples: u64,
}

/// Frees that memprof's sampler did not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnseenFrees {
    /// Sampled blocks that were allocated again while they counted as in use. They are no longer counted.
    pub samples: u64,
    /// Bytes by which the dump exceeds the allocator's own count, if the difference is significant.
    pub bytes: u64,
}

/// The reply to `dump`: one dump for each allocator that can profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DumpReport {
    /// The dump with the most bytes in use.
    #[serde(flatten)]
    pub largest: Dump,
    /// Start of sampling: RFC 3339, UTC.
    pub active_since: Option<String>,
    /// Time from the arrival of the message until the dump has its name, in milliseconds.
    pub duration_ms: u64,
    /// All dumps, including `largest`.
    pub dumps: Vec<Dump>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// A dump in the dump directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptDump {
    /// Id of the dump, for the argument of `fetch`.
    pub id: String,
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Time when it was taken: RFC 3339, UTC.
    pub taken: String,
    /// Id of the process that wrote it.
    pub pid: u32,
    /// Data in the dump.
    pub kind: OpenEnum<ProfileKind>,
    /// Reason why it was taken. Absent for a dump of an earlier version.
    pub trigger: Option<OpenEnum<TriggerKind>>,
    /// Resident memory of the process when the dump was taken, in bytes.
    pub rss_bytes: Option<u64>,
}

/// The reply to `list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DumpList {
    /// Kept dumps, newest first.
    pub dumps: Vec<KeptDump>,
}
