//! The profiler of this process. A forked child gets its own: its parent's has threads that the child does
//! not have, and locks that may be locked forever.

use std::process;
use std::sync::Arc;
use std::time::SystemTime;

use memprof_core::{Profiler, ProfilerSettings};
use memprof_own::{LockFreeOnce, ProcessLock};

/// The profiler of the process that created the plugin, and those of its descendants by fork(2).
pub(crate) struct Profilers {
    settings: ProfilerSettings,
    first: ForkGeneration,
}

struct ForkGeneration {
    process: u32,
    profiler: Arc<Profiler>,
    /// The profiler of the next forked child, if that has created it.
    child: LockFreeOnce<Self>,
    /// Locked while `child` is created. A grandchild that is forked meanwhile finds it unlocked, and creates
    /// its own.
    creation: ProcessLock,
}

impl Profilers {
    /// Creates the profiler of this process.
    pub(crate) fn new(settings: ProfilerSettings) -> Self {
        Self {
            first: ForkGeneration::new(&settings),
            settings,
        }
    }

    /// The profiler of this process; created if it is missing.
    pub(crate) fn current(&self) -> &Arc<Profiler> {
        let mut generation = &self.first;
        while !generation.is_current_process() {
            generation = generation.child(&self.settings);
        }
        &generation.profiler
    }

    /// The profiler of this process. `None` if it was not used yet.
    pub(crate) fn existing(&self) -> Option<&Arc<Profiler>> {
        let mut generation = &self.first;
        while !generation.is_current_process() {
            generation = generation.child.get()?;
        }
        Some(&generation.profiler)
    }
}

impl ForkGeneration {
    /// Creates the profiler of the calling process, and lets it maintain sampling that began before.
    fn new(settings: &ProfilerSettings) -> Self {
        let profiler = Arc::new(Profiler::new(settings.clone(), SystemTime::now()));
        profiler.maintain_already_active();
        Self {
            process: process::id(),
            profiler,
            child: LockFreeOnce::new(),
            creation: ProcessLock::new(),
        }
    }

    /// The next generation, which belongs to a forked child of this one's process; created for the calling
    /// process if it is missing. Blocks while another thread creates it.
    fn child(&self, settings: &ProfilerSettings) -> &Self {
        if let Some(child) = self.child.get() {
            return child;
        }
        let _guard = self.creation.lock();
        let existing = self.child.get();
        existing.unwrap_or_else(|| self.child.get_or_set(Self::new(settings)))
    }

    /// Whether the profiler was created by the calling process.
    fn is_current_process(&self) -> bool {
        self.process == process::id()
    }
}
