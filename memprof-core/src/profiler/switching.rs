//! Sampling switched on and off.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Profiler, lock, with_remedy};
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::status::Activation;

impl Profiler {
    /// Starts sampling in every jemalloc that can. `lg_sample` also sets the interval, which
    /// drops the samples so far; `duration` is when it ends by itself. An activation without it
    /// lasts, also where one with it is running.
    ///
    /// # Errors
    /// Why none of them can, with the remedy for this process.
    pub fn activate(
        self: &Arc<Self>,
        lg_sample: Option<u64>,
        duration: Option<Duration>,
    ) -> Result<Activation> {
        self.look_again();
        let allocators = self.allocators();
        self.require_profiling(&allocators)?;
        let mut warnings = Vec::new();
        let _running = lg_sample.map(|_| self.begin_dump()).transpose()?;
        // Held over the switching: the switch is read back, and another thread may turn it.
        let mut since = lock(&self.active_since);
        for jemalloc in allocators.iter() {
            match jemalloc.require_profiling() {
                Ok(()) => {
                    if let Some(lg_sample) = lg_sample {
                        jemalloc.reset(lg_sample)?;
                        warnings.push("setting lg_sample dropped the samples so far".to_owned());
                    }
                    jemalloc.set_active(true)?;
                }
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
    /// jemalloc refused.
    pub fn deactivate(&self) -> Result<Activation> {
        let allocators = self.allocators();
        let mut since = lock(&self.active_since);
        allocators
            .iter()
            .try_for_each(|jemalloc| jemalloc.set_active(false))?;
        *since = None;
        drop(since);
        self.set_lease(None);
        let unavailable = self.require_profiling(&allocators).err();
        let warnings = unavailable.iter().map(with_remedy).collect();
        Ok(Activation {
            status: self.status(),
            warnings,
        })
    }

    /// Drops all samples in every jemalloc that profiles, and sets the sample interval where
    /// `lg_sample` is given.
    ///
    /// # Errors
    /// `Busy` while a dump runs; why profiling is not on.
    pub fn reset(&self, lg_sample: Option<u64>) -> Result<Activation> {
        let running = self.begin_dump()?;
        let allocators = self.allocators();
        self.require_profiling(&allocators)?;
        for jemalloc in allocators.iter().filter(|jemalloc| jemalloc.opt_prof) {
            let current = jemalloc.lg_sample();
            match lg_sample.or(current) {
                Some(lg_sample) => jemalloc.reset(lg_sample)?,
                None => {
                    return Err(Error::allocator(
                        "jemalloc does not tell its sample interval",
                    ));
                }
            }
        }
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

    fn set_lease(&self, lease: Option<Lease>) {
        *lock(&self.lease) = lease;
    }

    pub(super) fn active_until(&self) -> Option<SystemTime> {
        let lease = lock(&self.lease);
        lease.as_ref().map(|lease| lease.until)
    }
}
