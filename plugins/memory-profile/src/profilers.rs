//! The profiler of this process. A forked child has one of its own: its parent's has threads that the
//! child does not have, and locks that may be held for ever.

use std::process;
use std::sync::Arc;
use std::time::SystemTime;

use memprof_core::{Profiler, ProfilerSettings};
use memprof_own::{LockFreeOnce, ProcessLock};

/// The profiler of the process that made the plugin, and those of its descendants by fork(2).
pub(crate) struct Profilers {
    settings: ProfilerSettings,
    first: ForkGeneration,
}

struct ForkGeneration {
    process: u32,
    profiler: Arc<Profiler>,
    child: LockFreeOnce<Self>,
    /// Held while that one is made. A grandchild that is forked meanwhile finds it free, and makes its own.
    making: ProcessLock,
}

impl Profilers {
    /// With the one of this process.
    pub(crate) fn new(settings: ProfilerSettings) -> Self {
        Self {
            first: ForkGeneration::new(&settings),
            settings,
        }
    }

    /// That of this process, made where it is missing.
    pub(crate) fn current(&self) -> &Arc<Profiler> {
        let mut generation = &self.first;
        while !generation.is_current_process() {
            generation = generation.child(&self.settings);
        }
        &generation.profiler
    }

    /// That of this process, where it was asked for before.
    pub(crate) fn existing(&self) -> Option<&Arc<Profiler>> {
        let mut generation = &self.first;
        while !generation.is_current_process() {
            generation = generation.child.get()?;
        }
        Some(&generation.profiler)
    }
}

impl ForkGeneration {
    fn new(settings: &ProfilerSettings) -> Self {
        let profiler = Arc::new(Profiler::new(settings.clone(), SystemTime::now()));
        profiler.maintain_already_active();
        Self {
            process: process::id(),
            profiler,
            child: LockFreeOnce::new(),
            making: ProcessLock::new(),
        }
    }

    /// That of the process's child, made where it is missing.
    fn child(&self, settings: &ProfilerSettings) -> &Self {
        if let Some(child) = self.child.get() {
            return child;
        }
        let _sole = self.making.lock();
        let made = self.child.get();
        made.unwrap_or_else(|| self.child.get_or_set(Self::new(settings)))
    }

    fn is_current_process(&self) -> bool {
        self.process == process::id()
    }
}
