//! The sampling switch: the state of sampling, behind a lock that is held while sampling is started or stopped.

use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use super::age_clock::{AgeBucketWidth, AgeClock};
use super::earlier_sampling::EarlierSampling;
use super::labels::{ActiveLabels, LabelKeys};
use super::lease::Lease;
use crate::allocators::jemalloc::Jemalloc;
use crate::error::Result;
use crate::lock::lock;
use crate::sampler;
use crate::unwinder::{PeriodicTask, Unwinder, UnwinderSettings, set_activation_time_limited};
use memprof_messages::{UnwinderChoice, UnwinderStatus};

/// The switch of sampling, and the parts that are installed while sampling is on.
#[derive(Debug)]
pub(super) struct SamplingSwitch {
    active: Mutex<ActiveSampling>,
    /// Whether an allocator was sampling before memprof was loaded.
    was_active_before_memprof: bool,
    unwinder: Unwinder,
    ages: AgeClock,
    labels: ActiveLabels,
}

/// State that exists only while sampling is on.
#[derive(Debug, Default)]
struct ActiveSampling {
    since: Option<SystemTime>,
    /// Live bytes at `since`. `None` if unknown.
    live_bytes_at_start: Option<u64>,
    lease: Option<Lease>,
    /// Sampling that the end of the lease restores. `None`: sampling was off.
    before_lease: Option<EarlierSampling>,
    periodic_task: Option<PeriodicTask>,
}

/// Start of an activation, and its deadline if it has a time limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivationTimes {
    pub(super) since: Option<SystemTime>,
    pub(super) deadline: Option<SystemTime>,
}

/// Guard of the locked switch. Installed parts are changed through it.
pub(super) struct SwitchGuard<'a> {
    active: MutexGuard<'a, ActiveSampling>,
    switch: &'a SamplingSwitch,
}

impl SamplingSwitch {
    /// Creates a switch that is off.
    pub(super) fn new(unwinder: UnwinderSettings) -> Self {
        Self {
            active: Mutex::default(),
            was_active_before_memprof: false,
            unwinder: Unwinder::new(unwinder),
            ages: AgeClock::new(),
            labels: ActiveLabels::default(),
        }
    }

    /// Records that an allocator was sampling before memprof was loaded. `now` counts as the start of sampling.
    pub(super) fn mark_active_before_memprof(&mut self, now: SystemTime) {
        self.was_active_before_memprof = true;
        lock(&self.active).since = Some(now);
    }

    /// Whether an allocator was sampling before memprof was loaded. If so, sampling must stay on when memprof is
    /// detached.
    pub(super) fn was_active_before_memprof(&self) -> bool {
        self.was_active_before_memprof
    }

    /// Locks the switch. Blocks while another thread starts or stops sampling.
    pub(super) fn lock(&self) -> SwitchGuard<'_> {
        SwitchGuard {
            active: lock(&self.active),
            switch: self,
        }
    }

    /// Start and deadline of the current activation. The start is `None` while sampling is off, and the deadline
    /// without a time limit.
    pub(super) fn activation_times(&self) -> ActivationTimes {
        self.lock().activation_times()
    }

    /// Live bytes when sampling began. `None` while it is off, or if unknown.
    pub(super) fn live_bytes_at_start(&self) -> Option<u64> {
        lock(&self.active).live_bytes_at_start
    }

    /// Advances the age buckets, clears outdated unwind rules, and uninstalls memprof's stack walkers whose stacks
    /// differ from the allocator's. Returns whether one is still installed: if not, the periodic task need not call it
    /// again.
    pub(super) fn maintain_unwinder_and_ages(&self) -> bool {
        self.maintain_unwinder();
        self.ages.advance_bucket();
        self.unwinder.has_own_walker()
    }

    /// Clears outdated unwind rules, and uninstalls memprof's stack walkers whose stacks differ from the allocator's;
    /// see [`Unwinder::maintain_walkers`].
    pub(super) fn maintain_unwinder(&self) {
        self.unwinder.maintain_walkers();
    }

    /// State of the stack walkers, for the message `status`.
    pub(super) fn unwinder_status(&self) -> UnwinderStatus {
        self.unwinder.status()
    }

    /// Reasons why memprof's stack walkers were uninstalled; see [`Unwinder::disagreement_reasons`].
    pub(super) fn walker_disagreements(&self) -> Vec<String> {
        self.unwinder.disagreement_reasons()
    }

    /// Whether memprof's stack walker is installed in at least one jemalloc.
    pub(super) fn has_own_walker(&self) -> bool {
        self.unwinder.has_own_walker()
    }

    /// Width of the age buckets in seconds. `None` while new samples have no age.
    pub(super) fn age_width(&self) -> Option<u32> {
        self.ages.width()
    }

    /// Content of a dump's `# ages:` line. `None` if samples never had ages. See [`AgeClock::header_line`].
    pub(super) fn age_header_line(&self) -> Option<String> {
        self.ages.header_line()
    }

    /// Keys of the labels that new samples record. Empty if no labels are recorded.
    pub(super) fn label_keys(&self) -> Vec<String> {
        self.labels.active_keys()
    }
}

impl SwitchGuard<'_> {
    /// Returns the start and the deadline of the activation; see [`SamplingSwitch::activation_times`].
    pub(super) fn activation_times(&self) -> ActivationTimes {
        ActivationTimes {
            since: self.active.since,
            deadline: self.active.lease.as_ref().map(|lease| lease.deadline),
        }
    }

    /// Installs memprof's stack walker in these jemallocs, and returns warnings; see [`Unwinder::install_walkers`].
    /// `choice` is `None` for the configured walker.
    pub(super) fn install_walkers(
        &mut self,
        jemallocs: &[&Jemalloc],
        choice: Option<UnwinderChoice>,
    ) -> Vec<String> {
        self.switch.unwinder.install_walkers(jemallocs, choice)
    }

    /// Starts to record allocation times, or stops if `width` is `None`; see [`AgeClock::set_width`].
    pub(super) fn set_age_width(&mut self, width: Option<AgeBucketWidth>) {
        self.switch.ages.set_width(width);
    }

    /// Starts to record these labels with new samples, or stops if `keys` is `None`.
    ///
    /// # Errors
    /// `Unsupported`: a label cannot be recorded; see [`ActiveLabels::set_keys`].
    pub(super) fn set_labels(&mut self, keys: Option<&LabelKeys>) -> Result<()> {
        self.switch.labels.set_keys(keys)
    }

    /// Sets the task that maintains the installed parts; `None` if they need none. The previous task is dropped, which
    /// stops it.
    pub(super) fn set_periodic_task(&mut self, periodic_task: Option<PeriodicTask>) {
        self.active.periodic_task = periodic_task;
    }

    /// Sets the lease (time limit) of the activation; `None` means no limit. With a limit, children forked from now on
    /// stop sampling. The previous lease is dropped, which cancels it.
    pub(super) fn set_lease(&mut self, lease: Option<Lease>) {
        set_activation_time_limited(lease.is_some());
        if lease.is_some() {
            sampler::stop_sampling_in_children();
        }
        self.active.lease = lease;
    }

    /// Records that sampling begins now with `live` bytes in use; `None` if they are unknown. Does nothing if it was
    /// already on.
    pub(super) fn mark_active(&mut self, live: Option<u64>) {
        if self.active.since.is_none() {
            self.active.since = Some(SystemTime::now());
            self.active.live_bytes_at_start = live;
        }
    }

    /// Stores the sampling to restore when the next lease (time limit of an activation) ends; `None` means to stop
    /// sampling then. Does nothing while a lease is running: the sampling from before that lease stays stored.
    pub(super) fn set_state_before_lease(&mut self, earlier: Option<EarlierSampling>) {
        if self.active.lease.is_none() {
            self.active.before_lease = earlier;
        }
    }

    /// Removes and returns the sampling to restore when the lease (time limit of an activation) ends. `None` means to
    /// stop sampling then.
    pub(super) fn take_state_before_lease(&mut self) -> Option<EarlierSampling> {
        self.active.before_lease.take()
    }

    /// Records that sampling goes on, with `since` as its start. Keeps the recorded number of live bytes at the start.
    pub(super) fn mark_active_since(&mut self, since: SystemTime) {
        self.active.since = Some(since);
    }

    /// Removes memprof's stack walker from the allocators, which may keep sampling, and stops the periodic task.
    pub(super) fn uninstall_walkers(&mut self) {
        self.switch.unwinder.uninstall_walkers();
        self.active.periodic_task = None;
    }

    /// Removes memprof's stack walker from the allocators, unless the periodic task is running: without it, the walker
    /// would use unwind rules of unloaded code.
    pub(super) fn uninstall_unmaintained_walkers(&mut self) {
        if self.active.periodic_task.is_none() {
            self.switch.unwinder.uninstall_walkers();
        }
    }

    /// Removes the installed parts (walkers, periodic task, ages and labels), and records that sampling is off. The
    /// lease (time limit) stays.
    ///
    /// # Errors
    /// The labels cannot be removed. The start of sampling stays recorded in that case.
    pub(super) fn uninstall_parts_and_mark_inactive(&mut self) -> Result<()> {
        self.uninstall_walkers();
        self.set_age_width(None);
        self.set_labels(None)?;
        self.active.since = None;
        self.active.live_bytes_at_start = None;
        Ok(())
    }
}
