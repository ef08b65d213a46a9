//! Whether and how samples are taken, behind the lock that whoever switches holds over the work.

use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use super::age_clock::{AgeBucketWidth, AgeClock};
use super::labels::{ActiveLabels, LabelKeys};
use super::lease::Lease;
use crate::allocators::jemalloc::Jemalloc;
use crate::error::Result;
use crate::lock::lock;
use crate::sampler;
use crate::unwinder::{PeriodicTask, Unwinder, UnwinderSettings, set_leased};
use memprof_messages::{UnwinderChoice, UnwinderStatus};

/// The switch of sampling, and what is installed while it is on.
#[derive(Debug)]
pub(super) struct SamplingSwitch {
    on: Mutex<ActiveSampling>,
    /// An allocator sampled before us.
    was_on: bool,
    unwinder: Unwinder,
    ages: AgeClock,
    labels: ActiveLabels,
}

/// What there is only while it is on.
#[derive(Debug, Default)]
struct ActiveSampling {
    since: Option<SystemTime>,
    lease: Option<Lease>,
    tick: Option<PeriodicTask>,
}

/// When an activation began, and when it ends by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivationTimes {
    pub(super) since: Option<SystemTime>,
    pub(super) until: Option<SystemTime>,
}

/// The switch, held: allocators are switched meanwhile, and only by it what is installed is changed.
pub(super) struct SwitchGuard<'a> {
    on: MutexGuard<'a, ActiveSampling>,
    switch: &'a SamplingSwitch,
}

impl SamplingSwitch {
    pub(super) fn new(unwinder: UnwinderSettings) -> Self {
        Self {
            on: Mutex::default(),
            was_on: false,
            unwinder: Unwinder::new(unwinder),
            ages: AgeClock::new(),
            labels: ActiveLabels::default(),
        }
    }

    /// An allocator samples already.
    pub(super) fn mark_already_active(&mut self, now: SystemTime) {
        self.was_on = true;
        lock(&self.on).since = Some(now);
    }

    /// Whether an allocator sampled before us.
    pub(super) fn was_active_before(&self) -> bool {
        self.was_on
    }

    /// Waits until nobody else switches.
    pub(super) fn lock(&self) -> SwitchGuard<'_> {
        SwitchGuard {
            on: lock(&self.on),
            switch: self,
        }
    }

    pub(super) fn activation(&self) -> ActivationTimes {
        let on = lock(&self.on);
        ActivationTimes {
            since: on.since,
            until: on.lease.as_ref().map(|lease| lease.until),
        }
    }

    /// Goes on to the next bucket of ages, and has the unwinder look at what was loaded. True while memprof's
    /// walk is installed.
    pub(super) fn maintain(&self) -> bool {
        self.maintain_unwinder();
        self.ages.advance();
        self.unwinder.has_own_walker()
    }

    pub(super) fn maintain_unwinder(&self) {
        self.unwinder.maintain();
    }

    pub(super) fn unwinder_status(&self) -> UnwinderStatus {
        self.unwinder.status()
    }

    /// As of [`Unwinder::disagreements`].
    pub(super) fn walker_disagreements(&self) -> Vec<String> {
        self.unwinder.disagreements()
    }

    /// Whether memprof's walk is installed somewhere.
    pub(super) fn has_own_walker(&self) -> bool {
        self.unwinder.has_own_walker()
    }

    pub(super) fn age_width(&self) -> Option<u32> {
        self.ages.width()
    }

    /// As of [`AgeClock::header_line`].
    pub(super) fn age_header_line(&self) -> Option<String> {
        self.ages.header_line()
    }

    /// The keys of labels that count.
    pub(super) fn labels(&self) -> Vec<String> {
        self.labels.active_keys()
    }
}

impl SwitchGuard<'_> {
    /// As of [`Unwinder::install`].
    pub(super) fn install(
        &mut self,
        jemallocs: &[&Jemalloc],
        choice: Option<UnwinderChoice>,
    ) -> Vec<String> {
        self.switch.unwinder.install(jemallocs, choice)
    }

    pub(super) fn set_ages(&mut self, width: Option<AgeBucketWidth>) {
        self.switch.ages.set(width);
    }

    /// As of [`ActiveLabels::set`].
    pub(super) fn set_labels(&mut self, keys: Option<&LabelKeys>) -> Result<()> {
        self.switch.labels.set(keys)
    }

    /// What looks after all that while it is on.
    pub(super) fn set_tick(&mut self, tick: Option<PeriodicTask>) {
        self.on.tick = tick;
    }

    /// When it ends by itself; without, it lasts.
    pub(super) fn set_lease(&mut self, lease: Option<Lease>) {
        set_leased(lease.is_some());
        if lease.is_some() {
            sampler::stop_sampling_in_children();
        }
        self.on.lease = lease;
    }

    /// Allocators sample from now on, unless they did.
    pub(super) fn mark_active(&mut self) {
        self.on.since.get_or_insert_with(SystemTime::now);
    }

    /// Takes away what is ours from allocators, which may go on sampling.
    pub(super) fn uninstall(&mut self) {
        self.switch.unwinder.remove();
        self.on.tick = None;
    }

    /// No allocator samples any more.
    ///
    /// # Errors
    /// As of [`ActiveLabels::set`].
    pub(super) fn clear(&mut self) -> Result<()> {
        self.uninstall();
        self.set_ages(None);
        self.set_labels(None)?;
        self.on.since = None;
        Ok(())
    }
}
