//! Sampling switched on and off.

use std::sync::Arc;
use std::time::Duration;

use super::age_clock::AgeBucketWidth;
use super::allocators::BackendList;
use super::labels::LabelKeys;
use super::lease::Lease;
use super::statistics::jemallocs;
use super::{Profiler, with_each, with_remedy};
use crate::allocators::interval::SampleInterval;
use crate::allocators::unprofilable::Unprofilable;
use crate::error::{Error, ErrorKind, Result};
use crate::unwinder::PeriodicTask;
use memprof_messages::{
    ActivationResult, AllocatorKind, ProfileKind, SamplerChoice, UnwinderChoice,
};

/// How long an activation lasts that costs too much to be left on, where nothing else is asked for.
const LEASE: Duration = Duration::from_secs(600);

/// What to activate, and how.
#[derive(Clone, Debug, Default)]
pub struct ActivateOptions {
    /// Those of that kind; else those that are driven.
    pub allocator: Option<AllocatorKind>,
    /// To set one may drop the samples so far.
    pub interval: Option<SampleInterval>,
    /// It ends by itself after so long. Without, it lasts, also where one with it is running.
    pub duration: Option<Duration>,
    /// Who walks the stacks until it ends; else as configured.
    pub unwinder: Option<UnwinderChoice>,
    /// Who samples until the next activation; else as configured.
    pub sampler: Option<SamplerChoice>,
    /// Samples have an age, in buckets of that length.
    pub ages: Option<AgeBucketWidth>,
    /// Samples have these labels of the allocating threads.
    pub labels: Option<LabelKeys>,
}

/// What came of switching on.
struct ActivationOutcome {
    /// Nothing was sampled before.
    is_fresh: bool,
    unseen_bytes: Option<u64>,
    warnings: Vec<String>,
}

impl Profiler {
    /// Starts sampling in every allocator that can.
    ///
    /// # Errors
    /// Why none of them can, with the remedy for this process.
    pub fn activate(self: &Arc<Self>, options: ActivateOptions) -> Result<ActivationResult> {
        let mut begun = self.activate_backends(options)?;
        let undrivable = self
            .allocators
            .stripped_jemalloc()
            .map(Unprofilable::StrippedJemalloc);
        let undrivable = undrivable.map(|why| with_remedy(&why.into()));
        begun.warnings.extend(undrivable);
        begun.warnings.dedup();
        Ok(ActivationResult {
            status: self.status(),
            begun: begun.is_fresh,
            unseen_bytes: begun.unseen_bytes,
            warnings: begun.warnings,
        })
    }

    /// The same where nobody is told what came of it: to know that, the program's whole file may have to be read.
    ///
    /// # Errors
    /// As for [`activate`](Self::activate).
    pub fn activate_without_result(self: &Arc<Self>, options: ActivateOptions) -> Result<()> {
        self.activate_backends(options).map(drop)
    }

    fn activate_backends(self: &Arc<Self>, options: ActivateOptions) -> Result<ActivationOutcome> {
        let ActivateOptions {
            allocator,
            interval,
            duration,
            unwinder,
            sampler,
            ages,
            labels,
        } = options;
        self.refresh_interception();
        self.allocators.refresh(&self.settings);
        let backends = self.allocators.backends_for(allocator)?;
        let sampler = sampler.unwrap_or(self.settings.sampler);
        let backends = self.choose_sampler(&backends, sampler)?;
        self.allocators
            .require_profile(&backends, ProfileKind::Heap)
            .inspect_err(|_| self.choose_by_default())?;
        let is_fresh = self.switch.activation().since.is_none();
        let unseen_bytes = if is_fresh {
            self.live_of(&backends)
        } else {
            None
        };
        let _running = interval.map(|_| self.dump_slot.acquire()).transpose()?;
        // Held over the switching: the switch is read back, and another thread may turn it.
        let mut switch = self.switch.lock();
        let mut warnings = switch.install(&jemallocs(&backends), unwinder);
        let marked = match (ages, &labels) {
            (None, None) => Ok(()),
            (Some(_), _) => self.require_own_walker(&backends, "ages"),
            (None, Some(_)) => self.require_own_walker(&backends, "labels"),
        };
        let marked = marked.and_then(|()| switch.set_labels(labels.as_ref()));
        marked.inspect_err(|_| {
            if is_fresh {
                switch.uninstall();
            }
        })?;
        switch.set_ages(ages);
        warnings.extend(with_each(&backends, |each| each.activate(interval))?);
        switch.set_tick(self.tick()?);
        switch.mark_active();
        let needs_an_end = backends.iter().any(|each| each.needs_time_limit());
        let lease = duration
            .or(needs_an_end.then_some(LEASE))
            .map(|duration| self.lease_for(duration))
            .transpose()?;
        switch.set_lease(lease);
        Ok(ActivationOutcome {
            is_fresh,
            unseen_bytes,
            warnings,
        })
    }

    /// Stops sampling, in every allocator unless `allocator` names some. What was sampled stays,
    /// and frees are still counted.
    ///
    /// # Errors
    /// An allocator refused; there is none of that name.
    pub fn deactivate(&self, allocator: Option<AllocatorKind>) -> Result<ActivationResult> {
        let backends = match allocator {
            None => self.allocators.all(),
            named => self.allocators.backends_for(named)?,
        };
        let mut switch = self.switch.lock();
        // All of them, also where the first refuses.
        let refusals: Vec<_> = backends
            .iter()
            .filter_map(|each| each.deactivate().err())
            .collect();
        if !self.allocators.is_active() {
            switch.clear()?;
        }
        if let Some(refusal) = refusals.into_iter().next() {
            return Err(refusal);
        }
        switch.set_lease(None);
        drop(switch);
        let unavailable = self
            .allocators
            .default_unprofilable_reason()
            .map(Error::from);
        Ok(ActivationResult {
            warnings: unavailable.iter().map(with_remedy).collect(),
            begun: false,
            unseen_bytes: None,
            status: self.status(),
        })
    }

    /// Drops all samples in every allocator that profiles and can, and sets the sample interval
    /// where `interval` is given. `allocator` as for [`activate`](Self::activate).
    ///
    /// # Errors
    /// `Busy` while a dump runs; why profiling is not on, or samples cannot be dropped.
    pub fn reset(
        &self,
        allocator: Option<AllocatorKind>,
        interval: Option<SampleInterval>,
    ) -> Result<ActivationResult> {
        let running = self.dump_slot.acquire()?;
        let backends = self.allocators.backends_for(allocator)?;
        let mut warnings = with_each(&backends, |each| each.reset(interval).map(|()| Vec::new()))?;
        drop(running);
        warnings.push("all samples so far were dropped".to_owned());
        Ok(ActivationResult {
            status: self.status(),
            begun: false,
            unseen_bytes: None,
            warnings,
        })
    }

    /// Ages and labels are told by the stacks that memprof walks.
    fn require_own_walker(&self, backends: &BackendList, what: &str) -> Result<()> {
        let samples = backends.iter().any(|each| each.sampler_status().is_some());
        if samples || self.switch.has_own_walker() {
            return Ok(());
        }
        let message =
            format!("{what} need memprof's stack walk or its sampler, and neither is at work here");
        let mut reasons = self
            .switch
            .unwinder_status()
            .walkers
            .into_iter()
            .filter_map(|each| each.reason);
        let message = match reasons.next() {
            Some(reason) => format!("{message}: {reason}"),
            None => message,
        };
        Err(Error::new(ErrorKind::Unsupported, message)
            .remedy(format!("activate sampler=memprof, or leave {what} out")))
    }

    fn lease_for(self: &Arc<Self>, duration: Duration) -> Result<Lease> {
        // Weak: a lease must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        Lease::start(duration, move || {
            let Some(profiler) = profiler.upgrade() else {
                return;
            };
            profiler.exclude_this_thread();
            match profiler.deactivate(None) {
                Ok(_) => log::info!("profiling is inactive: its time is over"),
                Err(error) => log::error!("profiling could not be ended in time: {error}"),
            }
        })
    }

    /// Looks after what samples already.
    pub fn maintain_already_active(self: &Arc<Self>) {
        if !self.maintain_sampler() {
            return;
        }
        match self.tick() {
            Ok(tick) => self.switch.lock().set_tick(tick),
            Err(error) => log::warn!("libraries that are loaded later are not sampled: {error}"),
        }
    }

    /// What looks after our walk and our sampler, where one of them is at work.
    fn tick(self: &Arc<Self>) -> Result<Option<PeriodicTask>> {
        let of_the_sampler = self.maintain_sampler();
        let is_needed = of_the_sampler || self.switch.has_own_walker();
        // Weak: a thread must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        let work = move || {
            profiler.upgrade().is_some_and(|profiler| {
                profiler.exclude_this_thread();
                let walks = profiler.switch.maintain();
                profiler.maintain_sampler() || walks
            })
        };
        is_needed
            .then(|| PeriodicTask::start(of_the_sampler, work))
            .transpose()
    }
}
