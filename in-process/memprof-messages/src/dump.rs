//! Replies about dumps.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{OpenEnum, ProfileKind, TriggerKind};

/// One dump, taken and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dump {
    /// What `fetch` takes.
    pub id: String,
    /// What it tells.
    pub kind: OpenEnum<ProfileKind>,
    /// Where it lies, absolute.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// The number of stacks in it.
    pub stacks: u64,
    /// Mean bytes between samples; 0 where it is not sampled.
    pub sample_interval: u64,
    /// Live bytes, corrected for sampling; of growth, all of it; of what is pinned, the free bytes beside live ones.
    pub estimated_inuse_bytes: u64,
    /// The allocator it is of: `jemalloc 5.3.0`.
    pub allocator: String,
    /// What the samples take in the process, in bytes: the tables of memprof's sampler, or what jemalloc's arenas have
    /// of internal memory, where its samples are. Absent where the allocator does not tell.
    pub metadata_bytes: Option<u64>,
}

/// What `dump` took: one dump for each allocator that can profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DumpReport {
    /// The one with most bytes in use.
    #[serde(flatten)]
    pub largest: Dump,
    /// Since when samples were taken: RFC 3339, UTC.
    pub active_since: Option<String>,
    /// From the message to the dump's name.
    pub duration_ms: u64,
    /// All of them.
    pub dumps: Vec<Dump>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// One kept dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptDump {
    /// What `fetch` takes.
    pub id: String,
    /// Where it lies, absolute.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was taken: RFC 3339, UTC.
    pub taken: String,
    /// The process that wrote it.
    pub pid: u32,
    /// What it tells.
    pub kind: OpenEnum<ProfileKind>,
    /// Why it was taken; absent for a dump of an earlier version.
    pub trigger: Option<OpenEnum<TriggerKind>>,
    /// The process's resident memory then.
    pub rss_bytes: Option<u64>,
}

/// What `list` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DumpList {
    /// Newest first.
    pub dumps: Vec<KeptDump>,
}
