//! Replies about the state of the profiler.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    AllocatorKind, InterceptionKind, OnOff, OpenEnum, Profiling, Provider, UnwinderChoice,
};

/// State of the profiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfilerStatus {
    /// Whether allocations are sampled.
    pub profiling: OpenEnum<Profiling>,
    /// Reason why profiling is unavailable.
    pub reason: Option<String>,
    /// Remedy that makes profiling available.
    pub remedy: Option<String>,
    /// Start of sampling: RFC 3339, UTC.
    pub active_since: Option<String>,
    /// Time when sampling stops automatically: RFC 3339, UTC.
    pub active_until: Option<String>,
    /// Mean bytes between samples.
    pub sample_interval: Option<u64>,
    /// Every allocator of the process.
    pub allocators: Vec<AllocatorStatus>,
    /// File whose `malloc` serves the process, if it belongs to none of these allocators.
    pub unknown_malloc: Option<String>,
    /// Path of the program, if it contains a jemalloc that memprof cannot control. No profile contains memory from that
    /// jemalloc.
    #[serde(alias = "undrivable_jemalloc")]
    pub stripped_jemalloc: Option<String>,
    /// Directory of the kept dumps.
    pub dump_dir: String,
    /// Number of kept dumps.
    pub kept: usize,
    /// Whether a dump is running.
    pub busy: bool,
    /// Watch rules.
    pub watch: Vec<WatchStatus>,
    /// State of `gdump`, if it is on.
    pub gdump: Option<GdumpStatus>,
    /// State of the stack walkers.
    pub unwinder: UnwinderStatus,
    /// Length of the age buckets in seconds, if ages are recorded.
    pub ages_s: Option<u32>,
    /// Keys of the labels that are recorded with samples.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Label sets that were recorded. Absent before the first activation with labels.
    pub label_sets: Option<LabelSetStats>,
    /// Interpreters that the last `activate` found, with counts of the frames of their programs, or the reason why
    /// there are none.
    #[serde(default)]
    pub languages: Vec<LanguageStatus>,
}

/// An interpreter in the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LanguageStatus {
    /// Name of the language, such as `python`.
    pub language: String,
    /// Version, as far as it is known, such as `3.11.2`.
    pub version: String,
    /// File that contains the interpreter.
    pub runtime: String,
    /// Number of stacks of memprof's sampler that were searched for the interpreter's frames, since the start of the
    /// process.
    pub samples: u64,
    /// Number of `samples` with frames of the program.
    pub with_frames: u64,
    /// Number of `with_frames` stacks that end at a frame that could not be read.
    pub ended_early: u64,
    /// Number of distinct functions and lines in these frames; at most 32,768.
    pub names: u32,
    /// Reason why stacks contain only the interpreter's own functions.
    pub off_because: Option<String>,
    /// Reason why objects of up to 512 bytes, which the interpreter's own allocator serves, are not sampled. It samples
    /// them, too, if this is null.
    #[serde(default)]
    pub objects_off_because: Option<String>,
}

/// Distinct label sets of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LabelSetStats {
    /// Number of distinct sets so far.
    pub seen: u64,
    /// Maximum number of sets that are distinguished.
    pub most: u64,
    /// Number of samples with further sets, which are recorded as `[other]`.
    pub others: u64,
    /// Size of the table of these sets in the process, in bytes.
    pub bytes: u64,
}

/// One allocator, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AllocatorStatus {
    /// Name of the allocator.
    pub kind: OpenEnum<AllocatorKind>,
    /// Version in the allocator's format, such as `5.3.0-0-g54eaed1d…`.
    pub version: String,
    /// Source of its functions: `host`, `dlsym` or the symbol table.
    pub found_by: String,
    /// Whether it serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Whether it is being sampled.
    pub prof_active: bool,
    /// Provider of its sampler. Absent if it cannot be profiled.
    pub sampler: Option<OpenEnum<Provider>>,
    /// State of memprof's sampler, if that sampler is in use.
    #[serde(flatten)]
    pub sampled: Option<SamplerStatus>,
    /// Mean bytes between samples, if it can be profiled.
    pub sample_interval: Option<u64>,
    /// Longest time in milliseconds for which threads that allocated may have waited during the last dump. The next one
    /// takes as long unless the number of stacks changes. Absent before the first dump, and with memprof's sampler, which
    /// lets them go on.
    #[serde(default)]
    pub dump_stall_ms: Option<u64>,
    /// Messages that it supports.
    pub can: Vec<String>,
    /// Reason why it cannot be profiled.
    pub reason: Option<String>,
    /// Remedy that makes it profilable.
    pub remedy: Option<String>,
    /// Build and start options, if it is a jemalloc.
    #[serde(flatten)]
    pub jemalloc: Option<JemallocOptions>,
}

/// Options with which a jemalloc was built and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JemallocOptions {
    /// Whether it was compiled with profiling.
    pub config_prof: bool,
    /// Whether it was started with profiling.
    pub opt_prof: bool,
    /// Whether threads that start from now on are sampled.
    pub prof_thread_active_init: bool,
    /// Base-2 logarithm of the sample interval.
    pub lg_sample: Option<u64>,
}

/// State of memprof's sampler for one allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SamplerStatus {
    /// Method by which the program's calls reach the sampler.
    #[serde(alias = "through")]
    pub interception: OpenEnum<InterceptionKind>,
    /// Counts of the slots that are patched to reach the sampler.
    pub slots: SlotCounts,
    /// Sampled allocations since the last `reset`.
    pub samples: u64,
    /// Number of `samples` that were not freed.
    pub live_samples: u64,
    /// Number of `samples` that were lost because a table was full.
    pub lost: u64,
    /// Blocks that were allocated again while their samples were live. The program freed them by calls that memprof
    /// does not intercept, so the profile shows other such blocks as live.
    #[serde(default)]
    pub unseen_frees: u64,
    /// Size of the sampler's tables in bytes.
    pub table_bytes: u64,
}

/// Counts of GOT slots of `malloc` and related functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlotCounts {
    /// Patched slots. For an allocator that is intercepted by `entry_patches`, its patched functions.
    pub patched: usize,
    /// Slots with neither the allocator's nor the sampler's function. Allocations through them are not sampled.
    pub foreign: usize,
    /// Slots that could not be written.
    pub refused: usize,
    /// Objects with addresses of the allocator's functions in their data. Allocations through these addresses are not
    /// sampled.
    pub unseen_objects: usize,
    /// Objects with their own `malloc`, which serves only some libraries.
    pub other_mallocs: usize,
}

/// State of the stack walkers of all allocators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnwinderStatus {
    /// Walker that was requested.
    pub setting: OpenEnum<UnwinderChoice>,
    /// Number of unwind rules that memprof's walker read from call frame information.
    pub rules_read: u64,
    /// One entry for each allocator.
    pub walkers: Vec<WalkerStatus>,
}

/// State of the stack walker of one allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkerStatus {
    /// Allocator with its version, such as `jemalloc 5.3.0-…`.
    pub allocator: String,
    /// Provider of the walker.
    pub walker: OpenEnum<Provider>,
    /// Reason why memprof's walker is not in use.
    pub reason: Option<String>,
    /// Time when memprof's walker was last installed: RFC 3339, UTC.
    pub since: Option<String>,
    /// Number of samples since then.
    pub samples: u64,
    /// Number of `samples` whose stacks the allocator's walker walked.
    pub fallbacks: u64,
    /// Number of `samples` whose walk stopped at unreadable stack memory, so that their stacks are truncated.
    pub cut: u64,
    /// Number of `samples` that both walkers walked.
    pub compared: u64,
    /// Number of `compared` stacks with equal frames.
    pub agreed: u64,
}

/// One watch rule, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchStatus {
    /// The rule as in the configuration, such as `rss_above = "80%"`.
    pub rule: String,
    /// Number of times that it fired.
    pub fired: u64,
    /// Time when it last fired: RFC 3339, UTC.
    pub last_fired: Option<String>,
    /// Time when it is due, or from which a threshold may fire again: RFC 3339, UTC. Absent for `at_exit`.
    pub next: Option<String>,
}

/// State of `gdump`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GdumpStatus {
    /// Number of dumps taken so far.
    pub taken: u32,
    /// Number of dumps after which it ends.
    pub files: u32,
    /// Time when it ends at the latest: RFC 3339, UTC.
    pub until: String,
    /// Largest resident memory so far, in bytes. Absent before the first poll.
    pub high_water_bytes: Option<u64>,
}

/// The reply to `activate` and `deactivate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActivationResult {
    /// State of the profiler afterwards.
    #[serde(flatten)]
    pub status: ProfilerStatus,
    /// Whether sampling has just started, so that profiles contain no earlier allocations.
    pub begun: bool,
    /// Bytes that the program had allocated when sampling started. Absent if its allocators do not count them.
    pub unseen_bytes: Option<u64>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// The reply to `gdump`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GdumpResult {
    /// Whether it is on.
    pub state: OpenEnum<OnOff>,
    /// Its state, or its last state if it was switched off.
    pub gdump: Option<GdumpStatus>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// Returns an allocator's version up to the first dash, without the commit: `5.3.0` for `5.3.0-0-g54eaed1d8b56`.
pub fn release_version(version: &str) -> &str {
    match version.split_once('-') {
        Some((release, _)) if !release.is_empty() => release,
        _ => version,
    }
}

/// Formats the allocator, such as `jemalloc 5.3.0`.
impl fmt::Display for AllocatorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, release_version(&self.version))
    }
}
