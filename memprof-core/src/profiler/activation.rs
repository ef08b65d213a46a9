//! Starts and stops sampling.

use std::sync::Arc;
use std::time::Duration;

use super::age_clock::AgeBucketWidth;
use super::allocators::BackendList;
use super::labels::LabelKeys;
use super::lease::Lease;
use super::sampling_switch::EarlierSampling;
use super::statistics::jemallocs;
use super::{Profiler, error_text_with_remedy, for_each_backend};
use crate::allocators::interval::SampleInterval;
use crate::allocators::unprofilable::Unprofilable;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::languages::prepare_languages;
use crate::sampler::{Backend, SamplerSelection};
use crate::unwinder::PeriodicTask;
use memprof_messages::{
    ActivationResult, AllocatorKind, LanguagesChoice, ProfileKind, SamplerChoice, UnwinderChoice,
};

/// Duration of an activation that is too expensive to be left on, unless the request has another one.
const DEFAULT_LEASE: Duration = Duration::from_secs(600);

/// Options of an activation.
#[derive(Clone, Debug, Default)]
pub struct ActivateOptions {
    /// Kind of the allocators to activate. `None`: the default allocators of messages.
    pub allocator: Option<AllocatorKind>,
    /// Sample interval. Setting it may drop existing samples. `None` keeps the current interval.
    pub interval: Option<SampleInterval>,
    /// Time after which sampling stops. `None`: no time limit, even if a running activation has one.
    pub duration: Option<Duration>,
    /// Walker to use until the activation ends. `None`: the configured one.
    pub unwinder: Option<UnwinderChoice>,
    /// Sampler to use until the next activation. `None`: the configured one.
    pub sampler: Option<SamplerChoice>,
    /// Width of the age buckets that record when samples were allocated. `None`: not recorded.
    pub ages: Option<AgeBucketWidth>,
    /// Labels of the allocating threads to record with samples. `None`: not recorded.
    pub labels: Option<LabelKeys>,
    /// Whether stacks contain the function names of an interpreted program.
    pub languages: LanguagesChoice,
}

struct ActivationOutcome {
    /// Whether sampling was off before.
    is_fresh: bool,
    /// Live bytes at the start, which no profile will show. `None` if sampling was on already, or if unknown.
    unseen_bytes: Option<u64>,
    warnings: Vec<String>,
}

impl Profiler {
    /// Starts sampling in every selected allocator that can be profiled. Returns the new state, with warnings for the
    /// operator.
    ///
    /// # Errors
    /// The reason why no allocator can be profiled, with the remedy for this process. `Busy`: an interval is given
    /// while a dump runs. `Unsupported`: ages or labels cannot be recorded here. `Io`: a thread cannot be started.
    pub fn activate(self: &Arc<Self>, options: ActivateOptions) -> Result<ActivationResult> {
        let mut outcome = self.activate_backends(options)?;
        let stripped = self
            .allocators
            .stripped_jemalloc()
            .map(Unprofilable::StrippedJemalloc);
        let stripped = stripped.map(|reason| error_text_with_remedy(&reason.into()));
        outcome.warnings.extend(stripped);
        outcome.warnings.dedup();
        Ok(ActivationResult {
            status: self.status(),
            begun: outcome.is_fresh,
            unseen_bytes: outcome.unseen_bytes,
            warnings: outcome.warnings,
        })
    }

    /// Starts sampling as [`activate`](Self::activate) does, but builds no result. Faster, because the status may
    /// require a search of the whole executable for a stripped jemalloc.
    ///
    /// # Errors
    /// As for [`activate`](Self::activate).
    pub fn activate_without_result(self: &Arc<Self>, options: ActivateOptions) -> Result<()> {
        self.activate_backends(options).map(drop)
    }

    /// Selects the sampler, starts sampling, and installs everything that samples need: walker, labels, ages, periodic
    /// task and lease.
    ///
    /// # Errors
    /// As for [`activate`](Self::activate).
    fn activate_backends(self: &Arc<Self>, options: ActivateOptions) -> Result<ActivationOutcome> {
        let ActivateOptions {
            allocator,
            interval,
            duration,
            unwinder,
            sampler,
            ages,
            labels,
            languages,
        } = options;
        self.refresh_interception();
        self.allocators.refresh(&self.settings);
        let earlier = self.earlier_sampling();
        let backends = self.allocators.backends_for(allocator)?;
        let sampler = sampler.unwrap_or(self.settings.sampler);
        let backends = self.select_sampler(&backends, sampler)?;
        self.allocators
            .require_profile(&backends, ProfileKind::Heap)
            .inspect_err(|_| self.select_default_sampler())?;
        let is_fresh = self.switch.activation().since.is_none();
        let unseen_bytes = if is_fresh {
            self.live_bytes_of(&backends)
        } else {
            None
        };
        // Setting an interval may drop samples, which must not happen during a dump.
        let _running = interval.map(|_| self.dump_slot.acquire()).transpose()?;
        // The switch stays locked for the whole activation. Another thread could otherwise change its state before it
        // is read back.
        let mut switch = self.switch.lock();
        let mut warnings = switch.install(&jemallocs(&backends), unwinder);
        let recorded = match (ages, &labels) {
            (None, None) => Ok(()),
            (Some(_), _) => self.require_own_walker(&backends, "ages"),
            (None, Some(_)) => self.require_own_walker(&backends, "labels"),
        };
        let recorded = recorded.and_then(|()| switch.set_labels(labels.as_ref()));
        recorded.inspect_err(|_| {
            if is_fresh {
                switch.uninstall();
            }
        })?;
        switch.set_ages(ages);
        let is_sampled = backends.iter().any(|each| each.sampler_status().is_some());
        prepare_languages(languages, is_sampled);
        warnings.extend(for_each_backend(&backends, |each| each.activate(interval))?);
        switch.set_periodic_task(self.start_periodic_task()?);
        switch.mark_active(unseen_bytes);
        let needs_time_limit = backends.iter().any(|each| each.needs_time_limit());
        let lease = duration
            .or(needs_time_limit.then_some(DEFAULT_LEASE))
            .map(|duration| self.start_lease(duration))
            .transpose()?;
        switch.set_state_before_lease(earlier);
        switch.set_lease(lease);
        Ok(ActivationOutcome {
            is_fresh,
            unseen_bytes,
            warnings,
        })
    }

    /// Stops sampling in the allocators of the kind `allocator`, or in all if it is `None`. Also ends the time limit.
    /// Existing samples are kept, and frees are still recorded.
    ///
    /// # Errors
    /// The error of the first allocator that refused; the others are still deactivated. `Unsupported`: there is no
    /// allocator of that kind.
    pub fn deactivate(&self, allocator: Option<AllocatorKind>) -> Result<ActivationResult> {
        let backends = match allocator {
            None => self.allocators.all(),
            named => self.allocators.backends_for(named)?,
        };
        let mut switch = self.switch.lock();
        // Collected, so that all are deactivated even if one refuses.
        let errors: Vec<_> = backends
            .iter()
            .filter_map(|each| each.deactivate().err())
            .collect();
        if !self.allocators.is_active() {
            switch.clear()?;
        }
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        switch.set_lease(None);
        switch.set_state_before_lease(None);
        drop(switch);
        let unavailable = self
            .allocators
            .default_unprofilable_reason()
            .map(Error::from);
        Ok(ActivationResult {
            warnings: unavailable.iter().map(error_text_with_remedy).collect(),
            begun: false,
            unseen_bytes: None,
            status: self.status(),
        })
    }

    /// Drops all samples in every allocator that can drop them: of the kind `allocator`, or of the default ones if it
    /// is `None`. Sets the sample interval if given; otherwise it stays.
    ///
    /// # Errors
    /// `Busy` while a dump runs. Otherwise the reason why profiling is off or samples cannot be dropped.
    pub fn reset(
        &self,
        allocator: Option<AllocatorKind>,
        interval: Option<SampleInterval>,
    ) -> Result<ActivationResult> {
        let running = self.dump_slot.acquire()?;
        let backends = self.allocators.backends_for(allocator)?;
        let mut warnings =
            for_each_backend(&backends, |each| each.reset(interval).map(|()| Vec::new()))?;
        drop(running);
        warnings.push("all samples so far were dropped".to_owned());
        Ok(ActivationResult {
            status: self.status(),
            begun: false,
            unseen_bytes: None,
            warnings,
        })
    }

    /// Fails unless memprof walks the stacks of samples, because only its walker appends ages and labels. `what` is the
    /// requested feature, for the error message.
    ///
    /// # Errors
    /// `Unsupported`: neither memprof's walker nor its sampler is in use.
    fn require_own_walker(&self, backends: &BackendList, what: &str) -> Result<()> {
        let samples = backends.iter().any(|each| each.sampler_status().is_some());
        if samples || self.switch.has_own_walker() {
            return Ok(());
        }
        let message =
            format!("{what} need memprof's stack walk or its sampler, and neither is in use here");
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

    /// Starts a lease that ends the current activation after `duration`: it stops sampling, or restores the sampling
    /// that was on before.
    ///
    /// # Errors
    /// `Io`: its thread cannot be started.
    fn start_lease(self: &Arc<Self>, duration: Duration) -> Result<Lease> {
        // A weak reference: the lease must not keep the profiler alive when the host ends.
        let profiler = Arc::downgrade(self);
        Lease::start(duration, move || {
            let Some(profiler) = profiler.upgrade() else {
                return;
            };
            profiler.exclude_this_thread();
            match profiler.end_lease() {
                Ok(text) => log::info!("{text}: its time is over"),
                Err(error) => log::error!("profiling could not be ended in time: {error}"),
            }
        })
    }

    /// The sampling that is on now. `None` if it is off, or if a lease will end it.
    fn earlier_sampling(&self) -> Option<EarlierSampling> {
        let now = self.switch.activation();
        let since = now.since.filter(|_| now.deadline.is_none())?;
        let backends = self.allocators.all();
        let active = backends.iter().filter(|each| each.is_active());
        let backend = |each: &Arc<Backend>| {
            let is_own = each.sampler_status().is_some();
            (Arc::clone(each), each.sample_interval(), is_own)
        };
        Some(EarlierSampling {
            since,
            backends: active.map(backend).collect(),
        })
    }

    /// Ends an activation whose time limit has passed: stops sampling, or restores the sampling that was on before.
    /// Returns the new state as text.
    ///
    /// # Errors
    /// An allocator refused.
    fn end_lease(self: &Arc<Self>) -> Result<&'static str> {
        let mut switch = self.switch.lock();
        let Some(earlier) = switch.take_state_before_lease() else {
            drop(switch);
            return self.deactivate(None).map(|_| "profiling is inactive");
        };
        let was_active = |each: &Arc<Backend>| {
            let mut backends = earlier.backends.iter();
            backends.any(|(backend, _, _)| Arc::ptr_eq(backend, each))
        };
        for each in self
            .allocators
            .all()
            .iter()
            .filter(|each| !was_active(each))
        {
            each.deactivate()?;
        }
        for (backend, interval, is_own) in &earlier.backends {
            if backend.sampler_status().is_some() != *is_own {
                backend.select(match is_own {
                    true => SamplerSelection::OwnRequested,
                    false => SamplerSelection::Allocator,
                })?;
            }
            let has_interval = backend.sample_interval() == *interval;
            if !(backend.is_active() && has_interval) {
                let interval = interval.filter(|_| !has_interval);
                backend.activate(interval.and_then(SampleInterval::from_bytes))?;
            }
        }
        switch.set_ages(None);
        switch.set_labels(None)?;
        switch.set_lease(None);
        switch.mark_active_since(earlier.since);
        Ok("profiling goes on as before the activation")
    }

    /// Starts the periodic task if memprof's sampler was on before this profiler was created. A failure is only logged.
    pub fn start_task_of_running_sampler(self: &Arc<Self>) {
        if !self.maintain_sampler() {
            return;
        }
        match self.start_periodic_task() {
            Ok(task) => self.switch.lock().set_periodic_task(task),
            Err(error) => log::warn!("libraries that are loaded later are not sampled: {error}"),
        }
    }

    /// Starts the task that maintains memprof's walker and sampler. `None` if neither is in use.
    ///
    /// # Errors
    /// `Io`: its thread cannot be started.
    fn start_periodic_task(self: &Arc<Self>) -> Result<Option<PeriodicTask>> {
        let for_sampler = self.maintain_sampler();
        let is_needed = for_sampler || self.switch.has_own_walker();
        // A weak reference: the thread must not keep the profiler alive when the host ends.
        let profiler = Arc::downgrade(self);
        let work = move || {
            profiler.upgrade().is_some_and(|profiler| {
                profiler.exclude_this_thread();
                let has_walker = profiler.switch.maintain();
                profiler.maintain_sampler() || has_walker
            })
        };
        is_needed
            .then(|| PeriodicTask::start(for_sampler, work))
            .transpose()
    }
}
