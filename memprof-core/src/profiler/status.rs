//! What the profiler tells of itself.

use serde::Serialize;

use super::dump::Dump;
use crate::identity::{Kind, ProfileKind};
use crate::sampler::Driven;
use crate::sampler::SamplerStatus;
use crate::unwinder::UnwinderStatus;
use crate::watching::gdump::GdumpStatus;
use crate::watching::watcher::WatchStatus;

/// One allocator, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Allocator {
    /// Which one.
    pub kind: Kind,
    /// Its version.
    pub version: String,
    /// `host`, `dlsym` or the symbol table.
    pub found_by: String,
    /// Serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Samples now.
    pub prof_active: bool,
    /// Who samples: `allocator` or `ours`; absent where it cannot be profiled.
    pub sampler: Option<&'static str>,
    /// What memprof's sampler did, where it samples.
    #[serde(flatten)]
    pub sampled: Option<SamplerStatus>,
    /// Mean bytes between samples, where it can be profiled.
    pub sample_interval: Option<u64>,
    /// The messages that it takes.
    pub can: Vec<&'static str>,
    /// Why it cannot be profiled.
    pub reason: Option<String>,
    /// What would help.
    pub remedy: Option<String>,
    /// How a jemalloc was built and started.
    #[serde(flatten)]
    pub jemalloc: Option<JemallocOptions>,
}

/// How a jemalloc was built and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

impl Allocator {
    pub(crate) fn of(backend: &Driven) -> Self {
        let identity = backend.identity();
        let unavailable = backend.require_profiling().err();
        let sampled = backend.sampler_status();
        let sampler = match (&unavailable, sampled) {
            (Some(_), _) => None,
            (None, Some(_)) => Some("ours"),
            (None, None) => Some("allocator"),
        };
        Self {
            sampler,
            sampled,
            kind: identity.kind,
            version: identity.version.clone(),
            found_by: identity.found_by.to_string(),
            owns_malloc: identity.owns_malloc,
            prof_active: backend.is_active(),
            sample_interval: backend.sample_interval(),
            can: abilities(backend),
            reason: unavailable.as_ref().map(|error| error.message.clone()),
            remedy: unavailable.map(|error| error.remedy),
            jemalloc: backend
                .allocator
                .jemalloc()
                .map(|jemalloc| JemallocOptions {
                    config_prof: jemalloc.config_prof,
                    opt_prof: jemalloc.opt_prof,
                    prof_thread_active_init: jemalloc.samples_new_threads(),
                    lg_sample: jemalloc.lg_sample(),
                }),
        }
    }
}

fn abilities(backend: &Driven) -> Vec<&'static str> {
    let can_profile = backend.require_profiling().is_ok();
    let jemalloc = backend.allocator.jemalloc();
    let is_ours = backend.sampler_status().is_some();
    let has_growth = backend.require_profile(ProfileKind::Growth).is_ok();
    let has_threads = jemalloc.is_some_and(|jemalloc| jemalloc.has_background_threads);
    [
        ("activate", can_profile),
        ("dump", can_profile),
        ("dump kind=growth", has_growth),
        ("reset", can_profile && (jemalloc.is_some() || is_ours)),
        ("stats", true),
        ("purge", true),
        ("background_thread", has_threads),
    ]
    .into_iter()
    .filter_map(|(message, can)| can.then_some(message))
    .collect()
}

/// The state of the profiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// `active`, `inactive` or `unavailable`.
    pub profiling: &'static str,
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
    pub allocators: Vec<Allocator>,
    /// The file whose `malloc` serves the process, where that is none of them.
    pub unknown_malloc: Option<String>,
    /// The program's file, where it contains a jemalloc that memprof cannot drive: what that one
    /// gives out is in no profile.
    pub undrivable_jemalloc: Option<String>,
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
}

/// What `activate` and `deactivate` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Activation {
    /// The state after it.
    #[serde(flatten)]
    pub status: Status,
    /// Sampling began just now, so no profile shows what was allocated before.
    pub begun: bool,
    /// What the program held then, where its allocators count it.
    pub unseen_bytes: Option<u64>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// What `gdump` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gdumping {
    /// What it is doing now, or was doing until it was switched off.
    pub gdump: Option<GdumpStatus>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// What `purge` did, in resident anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Purged {
    /// Before it.
    pub anonymous_before_bytes: u64,
    /// After it.
    pub anonymous_after_bytes: u64,
    /// The difference.
    pub released_bytes: u64,
}

/// What `dump` took: one dump for each allocator that can profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
