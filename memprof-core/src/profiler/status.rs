//! The status of one allocator.

use memprof_messages::{AllocatorStatus, JemallocOptions, ProfileKind, Provider};

use crate::sampler::Backend;

/// Builds the status of one allocator, for the message `status`. An allocator that cannot be profiled has a reason and
/// a remedy, and no sampler.
pub(crate) fn allocator_status(backend: &Backend) -> AllocatorStatus {
    let identity = backend.identity();
    let unavailable = backend.require_profiling().err();
    let sampled = backend.sampler_status();
    let sampler = match (&unavailable, &sampled) {
        (Some(_), _) => None,
        (None, Some(_)) => Some(Provider::Memprof),
        (None, None) => Some(Provider::Allocator),
    };
    AllocatorStatus {
        sampler: sampler.map(Provider::into),
        sampled,
        kind: identity.kind.into(),
        version: identity.version.clone(),
        found_by: identity.found_by.to_string(),
        owns_malloc: identity.owns_malloc,
        prof_active: backend.is_active(),
        sample_interval: backend.sample_interval(),
        dump_stall_ms: backend
            .last_dump_stall()
            .map(|stall| stall.as_millis() as u64),
        can: supported_messages(backend),
        reason: unavailable.as_ref().map(|error| error.to_string()),
        remedy: unavailable.map(|error| error.remedy),
        jemalloc: backend
            .allocator
            .as_jemalloc()
            .map(|jemalloc| JemallocOptions {
                config_prof: jemalloc.config_prof,
                opt_prof: jemalloc.opt_prof,
                prof_thread_active_init: jemalloc.samples_new_threads(),
                lg_sample: jemalloc.lg_sample(),
            }),
    }
}

/// Names of the messages that the allocator supports now, such as `dump` or `dump kind=growth`.
fn supported_messages(backend: &Backend) -> Vec<String> {
    let can_profile = backend.require_profiling().is_ok();
    let jemalloc = backend.allocator.as_jemalloc();
    let has_own_sampler = backend.sampler_status().is_some();
    let has_profile = |kind| backend.require_profile_kind(kind).is_ok();
    let has_threads = jemalloc.is_some_and(|jemalloc| jemalloc.has_background_threads);
    [
        ("activate", can_profile),
        ("dump", can_profile),
        ("dump kind=growth", has_profile(ProfileKind::Growth)),
        ("dump kind=pinned", has_profile(ProfileKind::Pinned)),
        (
            "reset",
            can_profile && (jemalloc.is_some() || has_own_sampler),
        ),
        ("stats", true),
        ("purge", true),
        ("background_thread", has_threads),
    ]
    .into_iter()
    .filter(|(_, can)| *can)
    .map(|(message, _)| message.to_owned())
    .collect()
}
