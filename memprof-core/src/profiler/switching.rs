//! Sampling switched on and off.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::figures::jemallocs;
use super::{Profiler, lock, require_profiling, with_remedy};
use crate::error::Result;
use crate::interval::SampleInterval;
use crate::lease::Lease;
use crate::status::Activation;
use crate::unwinder::{Tick, UnwinderChoice};

impl Profiler {
    /// Starts sampling in every allocator that can. `interval` may drop the samples so far;
    /// `duration` is when it ends by itself. An activation without it lasts, also where one with
    /// it is running. `unwinder` is who walks the stacks until it ends, as configured where it is
    /// not given.
    ///
    /// # Errors
    /// Why none of them can, with the remedy for this process.
    pub fn activate(
        self: &Arc<Self>,
        interval: Option<SampleInterval>,
        duration: Option<Duration>,
        unwinder: Option<UnwinderChoice>,
    ) -> Result<Activation> {
        self.look_again();
        let backends = self.backends();
        require_profiling(&backends)?;
        let mut warnings = Vec::new();
        let _running = interval.map(|_| self.begin_dump()).transpose()?;
        // Held over the switching: the switch is read back, and another thread may turn it.
        let mut since = lock(&self.active_since);
        warnings.extend(self.unwinder.install(&jemallocs(&backends), unwinder));
        self.set_tick()?;
        for backend in backends.iter() {
            match backend.require_profiling() {
                Ok(()) => warnings.extend(backend.activate(interval)?),
                Err(error) => warnings.push(with_remedy(&error)),
            }
        }
        since.get_or_insert_with(SystemTime::now);
        drop(since);
        warnings.dedup();
        let lease = duration
            .map(|duration| self.lease_for(duration))
            .transpose()?;
        self.set_lease(lease);
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    /// Stops sampling. What was sampled stays, and frees are still counted.
    ///
    /// # Errors
    /// An allocator refused.
    pub fn deactivate(&self) -> Result<Activation> {
        let backends = self.backends();
        let mut since = lock(&self.active_since);
        backends.iter().try_for_each(|each| each.deactivate())?;
        self.unwinder.remove();
        *lock(&self.tick) = None;
        *since = None;
        drop(since);
        self.set_lease(None);
        let unavailable = require_profiling(&backends).err();
        let warnings = unavailable.iter().map(with_remedy).collect();
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    /// Drops all samples in every allocator that profiles, and sets the sample interval where
    /// `interval` is given.
    ///
    /// # Errors
    /// `Busy` while a dump runs; why profiling is not on.
    pub fn reset(&self, interval: Option<SampleInterval>) -> Result<Activation> {
        let running = self.begin_dump()?;
        let backends = self.backends();
        require_profiling(&backends)?;
        let mut able = backends
            .iter()
            .filter(|each| each.require_profiling().is_ok());
        able.try_for_each(|each| each.reset(interval))?;
        drop(running);
        let warnings = vec!["all samples so far were dropped".to_owned()];
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    fn lease_for(self: &Arc<Self>, duration: Duration) -> Result<Lease> {
        // Weak: a lease must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        Lease::start(duration, move || {
            let Some(profiler) = profiler.upgrade() else {
                return;
            };
            match profiler.deactivate() {
                Ok(_) => log::info!("profiling is inactive: its time is over"),
                Err(error) => log::error!("profiling could not be ended in time: {error}"),
            }
        })
    }

    /// Looks after our walk while it is installed.
    fn set_tick(self: &Arc<Self>) -> Result<()> {
        let is_needed = self.unwinder.is_ours();
        // Weak: a thread must not keep the profiler of a host that ends.
        let profiler = Arc::downgrade(self);
        let work = move || {
            profiler.upgrade().is_some_and(|profiler| {
                profiler.unwinder.tend();
                profiler.unwinder.is_ours()
            })
        };
        *lock(&self.tick) = is_needed.then(|| Tick::start(work)).transpose()?;
        Ok(())
    }

    fn set_lease(&self, lease: Option<Lease>) {
        *lock(&self.lease) = lease;
    }

    pub(super) fn active_until(&self) -> Option<SystemTime> {
        let lease = lock(&self.lease);
        lease.as_ref().map(|lease| lease.until)
    }
}
