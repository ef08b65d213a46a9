//! Replies about dumps.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{EarlyEndReason, OpenEnum, ProfileKind, TriggerKind};

/// A dump that was taken and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dump {
    /// Id of the dump, an argument of `fetch`.
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
    /// Bytes in use, estimated from the samples. In a growth profile, all bytes of it; in a profile of pinned slabs,
    /// the free bytes beside live objects.
    pub estimated_inuse_bytes: u64,
    /// Allocator with its version: `jemalloc 5.3.0`.
    pub allocator: String,
    /// Memory of the samples in the process, in bytes: the tables of memprof's sampler, or the internal memory of
    /// jemalloc's arenas, where its samples are stored. Absent if the allocator does not report it.
    pub metadata_bytes: Option<u64>,
    /// Frees that memprof's sampler did not see, so that the dump shows freed memory as in use; absent if there is no
    /// sign of any.
    #[serde(default)]
    pub unseen_frees: Option<UnseenFrees>,
    /// Bytes in use that memprof's sampler did not see when they were allocated, so that the dump lacks them; absent if
    /// there is no sign of any.
    #[serde(default)]
    pub unseen_allocation_bytes: Option<u64>,
    /// Samples of memprof's sampler whose stacks lack their outermost frames, most first.
    #[serde(default)]
    pub early_ends: Vec<EarlyEnds>,
}

/// Samples whose stacks end early for one reason in one object, with those that were freed since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EarlyEnds {
    /// Reason for which they end.
    pub reason: OpenEnum<EarlyEndReason>,
    /// File of the code at which they end; absent if it is in no file, or for stacks with too many frames.
    pub object: Option<PathBuf>,
    /// Number of samples.
    pub samples: u64,
}

/// Frees that memprof's sampler did not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnseenFrees {
    /// Sampled blocks that were allocated again while they counted as in use. They no longer count.
    pub samples: u64,
    /// Bytes by which the dump exceeds what the allocator holds, beyond chance.
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
    /// Time from the message's arrival to the naming of the dump, in milliseconds.
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
    /// Id of the dump, an argument of `fetch`.
    pub id: String,
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Time at which it was taken: RFC 3339, UTC.
    pub taken: String,
    /// Id of the process that wrote it.
    pub pid: u32,
    /// Data in the dump.
    pub kind: OpenEnum<ProfileKind>,
    /// Reason for which it was taken; absent for a dump of an earlier version.
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
