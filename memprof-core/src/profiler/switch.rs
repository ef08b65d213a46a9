//! Whether and how samples are taken, behind the lock that whoever switches holds over the work.

use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use super::ages::{AgeWidth, Ages};
use super::labels::{LabelKeys, Labels};
use super::lease::Lease;
use crate::allocators::jemalloc::Jemalloc;
use crate::error::Result;
use crate::lock::lock;
use crate::sampler;
use crate::unwinder::{Tick, Unwinder, UnwinderSettings, set_leased};
use memprof_messages::{UnwinderChoice, UnwinderStatus};

/// The switch of sampling, and what is installed while it is on.
#[derive(Debug)]
pub(super) struct Switch {
    on: Mutex<On>,
    /// An allocator sampled before us.
    was_on: bool,
    unwinder: Unwinder,
    ages: Ages,
    labels: Labels,
}

/// What there is only while it is on.
#[derive(Debug, Default)]
struct On {
    since: Option<SystemTime>,
    lease: Option<Lease>,
    tick: Option<Tick>,
}

/// When an activation began, and when it ends by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation {
    pub(super) since: Option<SystemTime>,
    pub(super) until: Option<SystemTime>,
}

/// The switch, held: allocators are switched meanwhile, and only by it what is installed is changed.
pub(super) struct Held<'a> {
    on: MutexGuard<'a, On>,
    switch: &'a Switch,
}

impl Switch {
    pub(super) fn new(unwinder: UnwinderSettings) -> Self {
        Self {
            on: Mutex::default(),
            was_on: false,
            unwinder: Unwinder::new(unwinder),
            ages: Ages::new(),
            labels: Labels::default(),
        }
    }

    /// An allocator samples already.
    pub(super) fn found_on(&mut self, now: SystemTime) {
        self.was_on = true;
        lock(&self.on).since = Some(now);
    }

    /// Whether an allocator sampled before us.
    pub(super) fn was_on(&self) -> bool {
        self.was_on
    }

    /// Waits until nobody else switches.
    pub(super) fn hold(&self) -> Held<'_> {
        Held {
            on: lock(&self.on),
            switch: self,
        }
    }

    pub(super) fn activation(&self) -> Activation {
        let on = lock(&self.on);
        Activation {
            since: on.since,
            until: on.lease.as_ref().map(|lease| lease.until),
        }
    }

    /// Goes on to the next bucket of ages, and has the unwinder look at what was loaded. True while memprof's
    /// walk is installed.
    pub(super) fn tend(&self) -> bool {
        self.tend_unwinder();
        self.ages.tend();
        self.unwinder.is_ours()
    }

    pub(super) fn tend_unwinder(&self) {
        self.unwinder.tend();
    }

    pub(super) fn unwinder_status(&self) -> UnwinderStatus {
        self.unwinder.status()
    }

    /// As of [`Unwinder::given_up`].
    pub(super) fn given_up(&self) -> Vec<String> {
        self.unwinder.given_up()
    }

    /// Whether memprof's walk is installed somewhere.
    pub(super) fn walks(&self) -> bool {
        self.unwinder.is_ours()
    }

    pub(super) fn age_width(&self) -> Option<u32> {
        self.ages.width()
    }

    /// As of [`Ages::told`].
    pub(super) fn told_ages(&self) -> Option<String> {
        self.ages.told()
    }

    /// The keys of labels that count.
    pub(super) fn labels(&self) -> Vec<String> {
        self.labels.on()
    }
}

impl Held<'_> {
    /// As of [`Unwinder::install`].
    pub(super) fn install(
        &mut self,
        jemallocs: &[&Jemalloc],
        choice: Option<UnwinderChoice>,
    ) -> Vec<String> {
        self.switch.unwinder.install(jemallocs, choice)
    }

    pub(super) fn set_ages(&mut self, width: Option<AgeWidth>) {
        self.switch.ages.set(width);
    }

    /// As of [`Labels::set`].
    pub(super) fn set_labels(&mut self, keys: Option<&LabelKeys>) -> Result<()> {
        self.switch.labels.set(keys)
    }

    /// What looks after all that while it is on.
    pub(super) fn set_tick(&mut self, tick: Option<Tick>) {
        self.on.tick = tick;
    }

    /// When it ends by itself; without, it lasts.
    pub(super) fn set_lease(&mut self, lease: Option<Lease>) {
        set_leased(lease.is_some());
        if lease.is_some() {
            sampler::end_in_children();
        }
        self.on.lease = lease;
    }

    /// Allocators sample from now on, unless they did.
    pub(super) fn begin(&mut self) {
        self.on.since.get_or_insert_with(SystemTime::now);
    }

    /// Takes away what is ours from allocators, which may go on sampling.
    pub(super) fn leave(&mut self) {
        self.switch.unwinder.remove();
        self.on.tick = None;
    }

    /// No allocator samples any more.
    ///
    /// # Errors
    /// As of [`Labels::set`].
    pub(super) fn end(&mut self) -> Result<()> {
        self.leave();
        self.set_ages(None);
        self.set_labels(None)?;
        self.on.since = None;
        Ok(())
    }
}
