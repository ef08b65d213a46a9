//! Sampling switched on and off.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::ages::AgeWidth;
use super::figures::jemallocs;
use super::labels::LabelKeys;
use super::lease::Lease;
use super::{Backends, Profiler, lock, with_each, with_remedy};
use crate::allocators::embedded;
use crate::allocators::interval::SampleInterval;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler;
use crate::unwinder::{Tick, set_leased};
use memprof_messages::{Activation, Kind, ProfileKind, SamplerChoice, UnwinderChoice};

/// How long an activation lasts that costs too much to be left on, where nothing else is asked for.
const LEASE: Duration = Duration::from_secs(600);

/// What to activate, and how.
#[derive(Clone, Debug, Default)]
pub struct ActivateOptions {
    /// Those of that kind; else those that are driven.
    pub allocator: Option<Kind>,
    /// To set one may drop the samples so far.
    pub interval: Option<SampleInterval>,
    /// It ends by itself after so long. Without, it lasts, also where one with it is running.
    pub duration: Option<Duration>,
    /// Who walks the stacks until it ends; else as configured.
    pub unwinder: Option<UnwinderChoice>,
    /// Who samples until the next activation; else as configured.
    pub sampler: Option<SamplerChoice>,
    /// Samples have an age, in buckets of that length.
    pub ages: Option<AgeWidth>,
    /// Samples have these labels of the allocating threads.
    pub labels: Option<LabelKeys>,
}

impl Profiler {
    /// Starts sampling in every allocator that can.
    ///
    /// # Errors
    /// Why none of them can, with the remedy for this process.
    pub fn activate(self: &Arc<Self>, options: ActivateOptions) -> Result<Activation> {
        let ActivateOptions {
            allocator,
            interval,
            duration,
            unwinder,
            sampler,
            ages,
            labels,
        } = options;
        self.look_again();
        let backends = self.driven(allocator)?;
        let sampler = sampler.unwrap_or(self.settings.sampler);
        let backends = self.choose_sampler(&backends, sampler)?;
        self.require_profile(&backends, ProfileKind::Heap)
            .inspect_err(|_| self.choose_by_default())?;
        let begun = lock(&self.active_since).is_none();
        let unseen_bytes = if begun { self.live_of(&backends) } else { None };
        let _running = interval.map(|_| self.begin_dump()).transpose()?;
        // Held over the switching: the switch is read back, and another thread may turn it.
        let mut since = lock(&self.active_since);
        let mut warnings = self.unwinder.install(&jemallocs(&backends), unwinder);
        let marked = match (ages, &labels) {
            (None, None) => Ok(()),
            (Some(_), _) => self.require_our_stacks(&backends, "ages"),
            (None, Some(_)) => self.require_our_stacks(&backends, "labels"),
        };
        let marked = marked.and_then(|()| self.labels.set(labels.as_ref()));
        marked.inspect_err(|_| {
            if begun {
                self.unwinder.remove();
            }
        })?;
        self.ages.set(ages);
        warnings.extend(with_each(&backends, |each| each.activate(interval))?);
        self.set_tick()?;
        warnings.extend(self.undrivable().map(|path| {
            let message = embedded::message(&path);
            format!("{message}; {}", embedded::REMEDY)
        }));
        since.get_or_insert_with(SystemTime::now);
        drop(since);
        warnings.dedup();
        let needs_an_end = backends.iter().any(|each| each.needs_an_end());
        let lease = duration
            .or(needs_an_end.then_some(LEASE))
            .map(|duration| self.lease_for(duration))
            .transpose()?;
        self.set_lease(lease);
        Ok(Activation {
            status: self.status(),
            begun,
            unseen_bytes,
            warnings,
        })
    }

    /// Stops sampling, in every allocator unless `allocator` names some. What was sampled stays,
    /// and frees are still counted.
    ///
    /// # Errors
    /// An allocator refused; there is none of that name.
    pub fn deactivate(&self, allocator: Option<Kind>) -> Result<Activation> {
        let backends = match allocator {
            None => self.backends(),
            named => self.driven(named)?,
        };
        let mut since = lock(&self.active_since);
        // All of them, also where the first refuses.
        let refusals: Vec<_> = backends
            .iter()
            .filter_map(|each| each.deactivate().err())
            .collect();
        if !self.is_active() {
            self.unwinder.remove();
            self.ages.set(None);
            self.labels.set(None)?;
            *lock(&self.tick) = None;
            *since = None;
        }
        drop(since);
        if let Some(refusal) = refusals.into_iter().next() {
            return Err(refusal);
        }
        self.set_lease(None);
        let unavailable = self.unavailable();
        Ok(Activation {
            warnings: unavailable.iter().map(with_remedy).collect(),
            begun: false,
            unseen_bytes: None,
            status: self.status(),
        })
    }

    /// Takes away what is ours from allocators that go on sampling.
    pub(super) fn leave_active(&self) -> Result<()> {
        self.unwinder.remove();
        *lock(&self.tick) = None;
        self.set_lease(None);
        Ok(())
    }

    /// Drops all samples in every allocator that profiles and can, and sets the sample interval
    /// where `interval` is given. `allocator` as for [`activate`](Self::activate).
    ///
    /// # Errors
    /// `Busy` while a dump runs; why profiling is not on, or samples cannot be dropped.
    pub fn reset(
        &self,
        allocator: Option<Kind>,
        interval: Option<SampleInterval>,
    ) -> Result<Activation> {
        let running = self.begin_dump()?;
        let backends = self.driven(allocator)?;
        let mut warnings = with_each(&backends, |each| each.reset(interval).map(|()| Vec::new()))?;
        drop(running);
        warnings.push("all samples so far were dropped".to_owned());
        Ok(Activation {
            status: self.status(),
            begun: false,
            unseen_bytes: None,
            warnings,
        })
    }

    /// Ages and labels are told by the stacks that memprof walks.
    fn require_our_stacks(&self, backends: &Backends, what: &str) -> Result<()> {
        let samples = backends.iter().any(|each| each.sampler_status().is_some());
        if samples || self.unwinder.is_ours() {
            return Ok(());
        }
        let message = format!(
            "{what} are told by memprof's stack walk or its sampler, and neither is at work here"
        );
        let mut reasons = self
            .unwinder
            .status()
            .walkers
            .into_iter()
            .filter_map(|each| each.reason);
        let message = match reasons.next() {
            Some(reason) => format!("{message}: {reason}"),
            None => message,
        };
        Err(Error::new(ErrorKind::Unsupported, message)
            .remedy(format!("activate sampler=ours, or leave {what} out")))
    }

    fn lease_for(self: &Arc<Self>, duration: Duration) -> Result<Lease> {
        // Weak: a lease must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        Lease::start(duration, move || {
            let Some(profiler) = profiler.upgrade() else {
                return;
            };
            profiler.leave_this_thread_out();
            match profiler.deactivate(None) {
                Ok(_) => log::info!("profiling is inactive: its time is over"),
                Err(error) => log::error!("profiling could not be ended in time: {error}"),
            }
        })
    }

    /// Looks after what samples already.
    pub fn tend_what_samples(self: &Arc<Self>) {
        if self.tend_sampler()
            && let Err(error) = self.set_tick()
        {
            log::warn!("libraries that are loaded later are not sampled: {error}");
        }
    }

    /// Looks after our walk while it is installed.
    fn set_tick(self: &Arc<Self>) -> Result<()> {
        let of_the_sampler = self.tend_sampler();
        let is_needed = of_the_sampler || self.unwinder.is_ours();
        // Weak: a thread must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        let work = move || {
            profiler.upgrade().is_some_and(|profiler| {
                profiler.leave_this_thread_out();
                profiler.unwinder.tend();
                profiler.ages.tend();
                profiler.tend_sampler() || profiler.unwinder.is_ours()
            })
        };
        *lock(&self.tick) = is_needed
            .then(|| Tick::start(of_the_sampler, work))
            .transpose()?;
        Ok(())
    }

    fn set_lease(&self, lease: Option<Lease>) {
        set_leased(lease.is_some());
        if lease.is_some() {
            sampler::end_in_children();
        }
        *lock(&self.lease) = lease;
    }

    pub(super) fn active_until(&self) -> Option<SystemTime> {
        let lease = lock(&self.lease);
        lease.as_ref().map(|lease| lease.until)
    }
}
