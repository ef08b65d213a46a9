//! Replies about the state of the profiler.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    AllocatorKind, InterceptionKind, OnOff, OpenEnum, Profiling, Provider, UnwinderChoice,
};

/// The state of the profiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfilerStatus {
    /// Whether it samples.
    pub profiling: OpenEnum<Profiling>,
    /// Why it is unavailable.
    pub reason: Option<String>,
    /// What would help.
    pub remedy: Option<String>,
    /// Since when it samples: RFC 3339, UTC.
    pub active_since: Option<String>,
    /// When it ends by itself: RFC 3339, UTC.
    pub active_until: Option<String>,
    /// Mean bytes between samples.
    pub sample_interval: Option<u64>,
    /// Every allocator of the process.
    pub allocators: Vec<AllocatorStatus>,
    /// The file whose `malloc` serves the process, where that is none of them.
    pub unknown_malloc: Option<String>,
    /// The program's file, where it contains a jemalloc that memprof cannot drive: what that one
    /// gives out is in no profile.
    #[serde(alias = "undrivable_jemalloc")]
    pub stripped_jemalloc: Option<String>,
    /// Where dumps are kept.
    pub dump_dir: String,
    /// How many are kept.
    pub kept: usize,
    /// A dump is running.
    pub busy: bool,
    /// The watch rules.
    pub watch: Vec<WatchStatus>,
    /// Dumps at high water, while they are on.
    pub gdump: Option<GdumpStatus>,
    /// Who walks the stacks of samples.
    pub unwinder: UnwinderStatus,
    /// The length of the buckets of time in which samples are counted, in seconds, while they are.
    pub ages_s: Option<u32>,
    /// The keys of labels by which samples are counted, while they are.
    #[serde(default)]
    pub labels: Vec<String>,
    /// What came of these labels, from the first activation with some on.
    pub label_sets: Option<LabelSetStats>,
}

/// The different sets of labels that samples had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabelSetStats {
    /// How many there were.
    pub seen: u64,
    /// How many are told apart, at the most.
    pub most: u64,
    /// Samples of all others, which are told as `[other]`.
    pub others: u64,
    /// What the sets take in the process at the most, in bytes.
    pub bytes: u64,
}

/// One allocator, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AllocatorStatus {
    /// Which one.
    pub kind: OpenEnum<AllocatorKind>,
    /// As the allocator tells it: `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// `host`, `dlsym` or the symbol table.
    pub found_by: String,
    /// Serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Samples now.
    pub prof_active: bool,
    /// Who samples; absent where it cannot be profiled.
    pub sampler: Option<OpenEnum<Provider>>,
    /// What memprof's sampler did, where it samples.
    #[serde(flatten)]
    pub sampled: Option<SamplerStatus>,
    /// Mean bytes between samples, where it can be profiled.
    pub sample_interval: Option<u64>,
    /// The messages that it takes.
    pub can: Vec<String>,
    /// Why it cannot be profiled.
    pub reason: Option<String>,
    /// What would help.
    pub remedy: Option<String>,
    /// How a jemalloc was built and started.
    #[serde(flatten)]
    pub jemalloc: Option<JemallocOptions>,
}

/// How a jemalloc was built and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JemallocOptions {
    /// Compiled with profiling.
    pub config_prof: bool,
    /// Started with profiling.
    pub opt_prof: bool,
    /// Samples in threads that start from now on.
    pub prof_thread_active_init: bool,
    /// log2 of the sample interval.
    pub lg_sample: Option<u64>,
}

/// What memprof's own sampler did, where it serves an allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SamplerStatus {
    /// How the program's calls lead to the sampler.
    #[serde(alias = "through")]
    pub interception: OpenEnum<InterceptionKind>,
    /// Calls of the program that lead to the sampler now.
    pub slots: SlotCounts,
    /// Allocations that were sampled since the last `reset`.
    pub samples: u64,
    /// Of these, not freed.
    pub live_samples: u64,
    /// Of these, not remembered: its tables were full.
    pub lost: u64,
    /// Blocks that were allocated again while their samples lived: the program freed them where memprof does not see
    /// it, and the profile shows others like them as live.
    #[serde(default)]
    pub unseen_frees: u64,
    /// What its tables take, in bytes.
    pub table_bytes: u64,
}

/// Slots of the dynamic linker that lead to `malloc` and its kin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlotCounts {
    /// They lead to the sampler. Of an allocator that is sampled through `entries`, its functions that do.
    pub patched: usize,
    /// They lead neither to the allocator nor to the sampler: what is allocated through them is not
    /// seen.
    pub foreign: usize,
    /// They could not be written.
    pub refused: usize,
    /// Objects that keep addresses of the allocator's functions in their data: what they allocate
    /// through those is not seen.
    pub unseen_objects: usize,
    /// Objects with a `malloc` of their own, which serves only some libraries.
    pub other_mallocs: usize,
}

/// The walkers of all allocators, as `status` shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnwinderStatus {
    /// What was asked for.
    pub setting: OpenEnum<UnwinderChoice>,
    /// How often our walk read a rule from call frame information.
    pub rules_read: u64,
    /// One for each allocator.
    pub walkers: Vec<WalkerStatus>,
}

/// The walker of one allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkerStatus {
    /// `jemalloc 5.3.0-…`.
    pub allocator: String,
    /// Whose it is.
    pub walker: OpenEnum<Provider>,
    /// Why it is not ours.
    pub reason: Option<String>,
    /// Since when it is, or was last, ours: RFC 3339, UTC.
    pub since: Option<String>,
    /// Samples since.
    pub samples: u64,
    /// Of these, left to the allocator.
    pub fallbacks: u64,
    /// Of these, ended where the stack could not be read.
    pub cut: u64,
    /// Of these, walked by both.
    pub compared: u64,
    /// Of those compared, equal frame by frame.
    pub agreed: u64,
}

/// One rule, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchStatus {
    /// As the config has it: `rss_above = "80%"`.
    pub rule: String,
    /// How many times it fired.
    pub fired: u64,
    /// When it fired last: RFC 3339, UTC.
    pub last_fired: Option<String>,
    /// When it is due, or for a threshold may fire again: RFC 3339, UTC; absent for `at_exit`.
    pub next: Option<String>,
}

/// What `gdump` is doing, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GdumpStatus {
    /// Dumps taken so far.
    pub taken: u32,
    /// It ends after so many.
    pub files: u32,
    /// It ends then at the latest: RFC 3339, UTC.
    pub until: String,
    /// The highest resident bytes so far; absent before the first look.
    pub high_water_bytes: Option<u64>,
}

/// What `activate` and `deactivate` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActivationResult {
    /// The state after it.
    #[serde(flatten)]
    pub status: ProfilerStatus,
    /// Sampling began just now, so no profile shows what was allocated before.
    pub begun: bool,
    /// What the program held then, where its allocators count it.
    pub unseen_bytes: Option<u64>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// What `gdump` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GdumpResult {
    /// Whether it is on now.
    pub state: OpenEnum<OnOff>,
    /// What it is doing now, or was doing until it was switched off.
    pub gdump: Option<GdumpStatus>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// The version of an allocator without the commit that it was built from, which stands behind a
/// dash: `5.3.0` of `5.3.0-0-g54eaed1d8b56`.
pub fn release(version: &str) -> &str {
    match version.split_once('-') {
        Some((release, _)) if !release.is_empty() => release,
        _ => version,
    }
}

/// `jemalloc 5.3.0`
impl fmt::Display for AllocatorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, release(&self.version))
    }
}
