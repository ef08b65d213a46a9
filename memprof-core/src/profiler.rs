//! The profiler of one process: carries out the messages for all its allocators.
//!
//! The locks of its parts are acquired in this order:
//!
//! 1. [`DumpSlot`] never waits: a second dump is refused as busy.
//! 2. [`SamplingSwitch`] is held while sampling is started or stopped, including the calls of allocators. State
//!    that only this work may change is reached through the switch's guard.
//! 3. Each other lock is held only to read or write one value. Its holder acquires no other lock of the profiler.
//!    These locks protect the list of [`Allocators`], [`LedgerHistory`], [`AutomaticDumps`], the unwinder's
//!    state, the labels' keys and the sampler's slots.
//!
//! The holder of the second lock may acquire locks of the third group, but not the other way round. The loader's lock
//! comes last: the sampler acquires it to patch slots.

mod activation;
mod age_clock;
mod allocators;
mod automatic_dumps;
mod detach;
mod dump_backends;
mod dump_slot;
mod dumper;
mod earlier_sampling;
mod exit_dump;
mod labels;
mod lease;
mod recent_allocations;
mod sampler_choice;
mod sampling_switch;
mod statistics;
pub(crate) mod status;
pub(crate) mod take_dump;
mod thread_exclusion;
mod unprofiled_memory;
mod usage_cache;

pub use activation::ActivateOptions;
pub use age_clock::AgeBucketWidth;
pub use labels::LabelKeys;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use self::allocators::Allocators;
use self::automatic_dumps::AutomaticDumps;
use self::dump_slot::DumpSlot;
use self::sampling_switch::{ActivationTimes, SamplingSwitch};
use self::status::allocator_status;
use self::usage_cache::LedgerHistory;
use crate::allocators::interval::SampleInterval;
use crate::allocators::mallctl::Mallctl;
use crate::allocators::printout::JemallocReaders;
use crate::allocators::unprofilable::Unprofilable;
use crate::dumps::store::{OpenedDump, Store};
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::languages::{language_status, prepare_languages};
use crate::sampler::{self, Backend};
use crate::system::clock::format_rfc3339;
use crate::unwinder::UnwinderSettings;
use memprof_messages::SamplerChoice;
use memprof_messages::{KeptDump, LanguagesChoice, ProfilerStatus, Profiling};

/// Hint for a profile that lacks memory allocated before profiling began. It continues a sentence about that memory.
pub const START_ACTIVE_HINT: &str = "and appear only if they are allocated again; to see all, \
     start the program with `memprof run --active` or set activate_at_start = true";

/// Settings of a profiler, from the host and the plugin's configuration.
#[derive(Clone, Debug)]
pub struct ProfilerSettings {
    /// Name of the program.
    pub program: String,
    /// The host's own jemalloc. `None` if the host does not pass one.
    pub host: Option<Mallctl>,
    /// An address in the plugin's image. Allocator functions in that image are not the host's.
    pub own_image: usize,
    /// Store of the kept dumps.
    pub store: Store,
    /// Functions that read a jemalloc's statistics.
    pub readers: JemallocReaders,
    /// Selection of the walker for stacks.
    pub unwinder: UnwinderSettings,
    /// Sampler to use unless an activation requests another one.
    pub sampler: SamplerChoice,
    /// Sample interval to use unless an activation or the allocator sets one.
    pub interval: Option<SampleInterval>,
}

/// The profiler of this process.
#[derive(Debug)]
pub struct Profiler {
    settings: ProfilerSettings,
    started: SystemTime,
    allocators: Allocators,
    switch: SamplingSwitch,
    dump_slot: DumpSlot,
    ledger_history: LedgerHistory,
    automatic_dumps: AutomaticDumps,
}

/// State of sampling, with its reason or times.
#[derive(Debug)]
enum ProfilingState {
    /// Profiling is impossible, for this reason.
    Unavailable(Unprofilable),
    /// Profiling is possible, and off.
    Inactive,
    /// Profiling is on, with its start and deadline.
    Active(ActivationTimes),
}

impl Profiler {
    /// Finds the allocators, selects their samplers and starts the dumper thread. From now on, memprof's sampler
    /// excludes each thread that memprof starts. `now` counts as the host's start time, and as the start of sampling
    /// that is already on. If the dumper thread cannot be started, only logs a warning: the first dump tries again.
    pub fn new(settings: ProfilerSettings, now: SystemTime) -> Self {
        memprof_own::set_thread_start_hook(sampler::exclude_this_thread);
        // Without this call, jemalloc may keep the cache of a thread that has ended.
        memprof_own::set_thread_end_hook(sampler::touch_hooked_jemalloc);
        let mut profiler = Self {
            allocators: Allocators::find_all(&settings),
            switch: SamplingSwitch::new(settings.unwinder),
            dump_slot: DumpSlot::default(),
            ledger_history: LedgerHistory::default(),
            automatic_dumps: AutomaticDumps::default(),
            settings,
            started: now,
        };
        profiler.select_default_sampler();
        if profiler.allocators.is_active() {
            profiler.switch.mark_active_before_memprof(now);
            let backends = profiler.allocators.all_backends();
            let is_sampled = backends.iter().any(|each| each.sampler_status().is_some());
            prepare_languages(LanguagesChoice::default(), is_sampled);
        }
        if let Err(error) = profiler.dump_slot.dumper.start() {
            log::warn!("{error}; the first dump tries again");
        }
        profiler
    }

    /// Reports the current state. Does not wait for a running dump. While sampling is off, first searches for
    /// allocators again if `memprof attach` patched functions since the last search. If the dump directory cannot be
    /// read, `reason` says so, unless there is a reason why profiling is impossible.
    pub fn status(&self) -> ProfilerStatus {
        self.refresh_interception();
        let backends = self.allocators.all_backends();
        let (kept, unreadable) = match self.settings.store.list_dumps() {
            Ok(kept) => (kept.len(), None),
            Err(error) => (0, Some(error_text_with_remedy(&error))),
        };
        let (profiling, unavailable, times) = match self.profiling_state() {
            ProfilingState::Unavailable(reason) => (Profiling::Unavailable, Some(reason), None),
            ProfilingState::Inactive => (Profiling::Inactive, None, None),
            ProfilingState::Active(times) => (Profiling::Active, None, Some(times)),
        };
        let reason = unavailable.as_ref().map(Unprofilable::message);
        ProfilerStatus {
            profiling: profiling.into(),
            reason: reason.or(unreadable),
            remedy: unavailable
                .map(|reason| reason.remedy())
                .filter(|remedy| !remedy.is_empty()),
            active_since: times.and_then(|times| times.since).map(format_rfc3339),
            active_until: times.and_then(|times| times.deadline).map(format_rfc3339),
            sample_interval: backends.iter().find_map(|each| each.sample_interval()),
            allocators: backends.iter().map(|each| allocator_status(each)).collect(),
            unknown_malloc: path_text(self.allocators.unknown_malloc()),
            stripped_jemalloc: path_text(self.allocators.stripped_jemalloc()),
            dump_dir: self.settings.store.directory().display().to_string(),
            kept,
            busy: self.dump_slot.is_busy(),
            watch: self.watch_status(),
            gdump: self.gdump_status(),
            unwinder: self.switch.unwinder_status(),
            ages_s: self.switch.age_width(),
            labels: self.switch.label_keys(),
            label_sets: labels::label_set_stats(),
            languages: language_status(),
        }
    }

    /// Reason why nothing can be sampled, and its remedy. `None` if profiling is possible or on. Cheaper than a full
    /// [`status`](Self::status).
    pub fn unavailable_reason_and_remedy(&self) -> Option<(String, String)> {
        match self.profiling_state() {
            ProfilingState::Unavailable(reason) => Some((reason.message(), reason.remedy())),
            ProfilingState::Inactive | ProfilingState::Active(_) => None,
        }
    }

    /// State of sampling, as the allocators report it: active if one of them is being sampled, unavailable if none of
    /// the default ones can be, and otherwise inactive.
    fn profiling_state(&self) -> ProfilingState {
        if self.allocators.is_active() {
            return ProfilingState::Active(self.switch.activation_times());
        }
        match self.allocators.default_unprofilable_reason() {
            Some(reason) => ProfilingState::Unavailable(reason),
            None => ProfilingState::Inactive,
        }
    }

    /// Lists the kept dumps (those in the dump directory), newest first.
    ///
    /// # Errors
    /// `Io`: the dump directory cannot be read, or other users may write to it.
    pub fn list_dumps(&self) -> Result<Vec<KeptDump>> {
        self.settings.store.list_dumps()
    }

    /// Opens a kept dump (one in the dump directory) for reading.
    ///
    /// # Errors
    /// `InvalidArgument`: no kept dump has this id. `Io`: the directory or the file cannot be read, or other users may
    /// write to the directory.
    pub fn open_dump(&self, id: &str) -> Result<OpenedDump> {
        self.settings.store.open_dump(id)
    }
}

/// Calls `work` with each backend (an allocator with its sampler), and returns all warnings. A backend that cannot be
/// profiled adds a warning, unless allocators of its kind have no profiler at all.
///
/// # Errors
/// The first error if no backend can be profiled. Any error other than `Unsupported` and `Unavailable`, at once: the
/// backends after it are not called.
fn for_each_backend(
    backends: &[Arc<Backend>],
    work: impl Fn(&Backend) -> Result<Vec<String>>,
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let mut unable = None;
    let mut is_done = false;
    for backend in backends {
        match work(backend) {
            Ok(more) => {
                warnings.extend(more);
                is_done = true;
            }
            Err(error) if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Unavailable) => {
                if backend.identity().kind.has_profiler() {
                    let message = format!("{error}: its allocations are in no profile");
                    let error = Error::new(error.kind, message).with_remedy(&error.remedy);
                    warnings.push(error_text_with_remedy(&error));
                }
                unable.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match unable {
        Some(error) if !is_done => Err(error),
        _ => Ok(warnings),
    }
}

/// `Unsupported` error for a process without jemalloc. `has` completes the sentence `only jemalloc …`.
fn no_jemalloc_error(has: &str) -> Error {
    let message = format!("only jemalloc {has}, and this process has none that memprof can find");
    Error::new(ErrorKind::Unsupported, message)
        .with_remedy(Unprofilable::no_profiler(None).remedy())
}

/// Converts a path to text for a reply. Replaces bytes that are not UTF-8. `None` stays `None`.
fn path_text(path: Option<PathBuf>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

/// Text of an error, followed by its remedy if there is one.
fn error_text_with_remedy(error: &Error) -> String {
    match error.remedy.as_str() {
        "" => error.to_string(),
        remedy => format!("{error}; {remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::{Behaviour, READERS, fake_mallctl};
    use memprof_messages::{Finding, Severity};

    /// A jemalloc that was started without profiling.
    struct ProfOffFake;
    impl Behaviour for ProfOffFake {
        const OPT_PROF: bool = false;
    }

    /// Creates a profiler of this process, with `host` as the jemalloc that the host passes. Also returns the
    /// guard of its directory.
    pub(super) fn new_profiler(host: Option<Mallctl>) -> (Arc<Profiler>, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let settings = ProfilerSettings {
            program: "test".to_owned(),
            host,
            own_image: 0,
            store: Store::new(
                directory.path().join("dumps"),
                crate::RetentionPolicy::default(),
            ),
            readers: READERS,
            unwinder: UnwinderSettings::default(),
            sampler: SamplerChoice::Allocator,
            interval: None,
        };
        let profiler = Arc::new(Profiler::new(settings, SystemTime::now()));
        (profiler, directory)
    }

    #[test]
    fn activate_status_and_doctor_report_same_reason() {
        for host in [None, Some(fake_mallctl::<ProfOffFake>())] {
            let (profiler, _directory) = new_profiler(host);
            let refused = profiler.activate(ActivateOptions::default()).unwrap_err();
            let refused = (refused.to_string(), refused.remedy);
            let status = profiler.status();
            assert_eq!(status.profiling, Profiling::Unavailable);
            let reported = status.reason.zip(status.remedy);
            assert_eq!(reported, Some(refused.clone()));
            assert_eq!(
                profiler.unavailable_reason_and_remedy(),
                Some(refused.clone())
            );
            let is_error = |finding: &Finding| finding.severity == Severity::Error;
            let found: Vec<_> = profiler.doctor().into_iter().filter(is_error).collect();
            let found = found.into_iter().map(|found| (found.message, found.remedy));
            assert_eq!(found.collect::<Vec<_>>(), [refused]);
        }
    }
}
