//! The profiler of this process. A forked child gets its own profiler, because its parent's has threads that do not
//! exist in the child, and locks that may be locked forever.

use std::process;
use std::sync::Arc;
use std::time::SystemTime;

use memprof_core::{ActivateOptions, Profiler, ProfilerSettings, SampleInterval, WatchRule};
use memprof_own::{LockFreeOnce, ProcessLock};
use memprof_plugin_abi::Failure;

use crate::reply::to_failure;
use crate::text::activation_text;

/// The profiler of the process that created the plugin, and the profilers of its descendants by fork(2).
pub(crate) struct Profilers {
    settings: ProfilerSettings,
    start: ProfilerStart,
    first: ForkGeneration,
}

/// The part of the configuration that takes effect at the start of each process.
pub(crate) struct ProfilerStart {
    /// Sample interval of an activation at the start, or the reason why it is invalid. `None`: no activation.
    pub(crate) activation: Option<Result<Option<SampleInterval>, Failure>>,
    /// Watch rules, in the order of the configuration.
    pub(crate) rules: Vec<WatchRule>,
}

/// The profiler of one process in a line of forks, and that of its forked child.
struct ForkGeneration {
    process: u32,
    profiler: Arc<Profiler>,
    /// The profiler of a forked child, once that child has created it.
    child: LockFreeOnce<Self>,
    /// Locked while `child` is being created. A grandchild forked during that time finds it unlocked, and creates its
    /// own profiler.
    creation: ProcessLock,
}

impl Profilers {
    /// Creates the profiler of this process, and applies the configuration.
    pub(crate) fn new(settings: ProfilerSettings, start: ProfilerStart) -> Self {
        let first = ForkGeneration::new(&settings);
        start.apply_config(&first.profiler);
        Self {
            settings,
            start,
            first,
        }
    }

    /// Returns whether the configuration has watch rules. One of them may request a dump at the exit.
    pub(crate) fn has_rules(&self) -> bool {
        !self.start.rules.is_empty()
    }

    /// Returns the profiler of this process. Creates it if it is missing, as in a forked child; then blocks while
    /// another thread creates it.
    pub(crate) fn get_or_create_profiler(&self) -> &Arc<Profiler> {
        let mut generation = &self.first;
        while !generation.belongs_to_current_process() {
            generation = generation.get_or_create_child(&self.settings, &self.start);
        }
        &generation.profiler
    }

    /// Returns the profiler of this process. `None` if it was not created yet, as in a new forked child.
    pub(crate) fn existing_profiler(&self) -> Option<&Arc<Profiler>> {
        let mut generation = &self.first;
        while !generation.belongs_to_current_process() {
            generation = generation.child.get()?;
        }
        Some(&generation.profiler)
    }
}

impl ForkGeneration {
    /// Creates the profiler of the calling process. If the process has been sampled since its start, or since before
    /// its fork, the profiler maintains that sampling.
    fn new(settings: &ProfilerSettings) -> Self {
        let profiler = Arc::new(Profiler::new(settings.clone(), SystemTime::now()));
        profiler.start_task_of_running_sampler();
        Self {
            process: process::id(),
            profiler,
            child: LockFreeOnce::new(),
            creation: ProcessLock::new(),
        }
    }

    /// Returns the next generation, which belongs to a forked child of this one's process. If it is missing, creates it
    /// for the calling process and applies the configuration. Blocks while another thread creates it.
    fn get_or_create_child(&self, settings: &ProfilerSettings, start: &ProfilerStart) -> &Self {
        if let Some(child) = self.child.get() {
            return child;
        }
        let _guard = self.creation.lock();
        if let Some(child) = self.child.get() {
            return child;
        }
        let child = self.child.get_or_set(Self::new(settings));
        start.apply_config(&child.profiler);
        child
    }

    /// Returns whether the calling process created the profiler. False in a forked child.
    fn belongs_to_current_process(&self) -> bool {
        self.process == process::id()
    }
}

impl ProfilerStart {
    /// Starts sampling if `activate_at_start` requests it, and sets the rules if there are any. Failures are only
    /// logged, because the program must continue even if it cannot be profiled.
    fn apply_config(&self, profiler: &Arc<Profiler>) {
        if let Some((reason, remedy)) = profiler.unavailable_reason_and_remedy() {
            log::warn!("profiling is unavailable: {reason}; {remedy}");
        } else if let Some(interval) = &self.activation
            && let Err(failure) = interval
                .clone()
                .and_then(|interval| activate_without_limit(profiler, interval))
        {
            log::error!("activate_at_start: {failure}");
        }
        if self.rules.is_empty() {
            return;
        }
        if let Err(error) = profiler.set_watch_rules(&self.rules) {
            log::error!("watch: {}", to_failure(error));
        }
    }
}

/// Starts sampling without a time limit, and logs that. `interval` is `None` if the configuration has none; the current
/// or default interval then applies.
fn activate_without_limit(
    profiler: &Arc<Profiler>,
    interval: Option<SampleInterval>,
) -> Result<(), Failure> {
    let options = ActivateOptions {
        interval,
        ..ActivateOptions::default()
    };
    // Only the log uses the result, which takes time to build.
    if !log::log_enabled!(log::Level::Info) {
        return profiler
            .activate_without_result(options)
            .map_err(to_failure);
    }
    let activation = profiler.activate(options).map_err(to_failure)?;
    log::info!("{}", activation_text(&activation));
    Ok(())
}
