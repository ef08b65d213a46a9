//! Who samples: each allocator for itself, or memprof's sampler for the one that serves `malloc`.

use std::sync::Arc;

use super::Profiler;
use super::allocators::Backends;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::Driven;
use crate::sampler::Samples;
use memprof_messages::{Kind, SamplerChoice};

impl Profiler {
    /// Settles who samples, and returns those of `backends` that do, or could.
    ///
    /// # Errors
    /// Why memprof's sampler cannot, where it was asked for.
    pub(super) fn choose_sampler(
        &self,
        backends: &Backends,
        choice: SamplerChoice,
    ) -> Result<Backends> {
        let ours = best_for_ours(backends);
        match (choice, ours) {
            (SamplerChoice::Auto, Some(ours)) if self.needs_ours(backends, ours) => {
                self.take_from_others(ours)?;
                // Where it cannot, the allocators tell what would help.
                let _refused = ours.choose(Samples::InPlace);
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, Some(_)) => {
                backends
                    .iter()
                    .try_for_each(|each| each.choose(Samples::Not))?;
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, None) => {}
            (SamplerChoice::Ours, Some(ours)) => {
                self.take_from_others(ours)?;
                ours.choose(Samples::Asked)?;
                return Ok([Arc::clone(ours)].into());
            }
            (SamplerChoice::Ours, None) => {
                let message = "memprof's sampler serves the allocator of malloc, and a jemalloc that \
                               can be hooked, which none of these is";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .remedy("leave `allocator` out, or see `status`"));
            }
        }
        Ok(Arc::clone(backends))
    }

    /// As before any activation.
    pub(super) fn choose_by_default(&self) {
        if let Err(error) = self.choose_sampler(&self.allocators.all(), self.settings.sampler) {
            log::debug!("{error}");
        }
    }

    /// Takes notice of jumps that `memprof attach` wrote.
    pub(super) fn renew(&self) {
        if !self.allocators.is_active() && self.allocators.is_outdated() {
            self.allocators.look_again(&self.settings);
            self.choose_by_default();
        }
    }

    /// There is one sampler in a process.
    fn take_from_others(&self, ours: &Arc<Driven>) -> Result<()> {
        let all = self.allocators.all();
        let mut others = all.iter().filter(|each| !is_it(each, ours));
        others.try_for_each(|other| other.choose(Samples::Not))
    }

    /// No allocator can profile, and ours would see what the program allocates: not where a
    /// jemalloc beside `malloc`, which cannot be hooked, serves the program by another name. Nor by
    /// hooks, unless they are asked for: jemalloc (5.3.1, `tsd_cleanup`) forgets to take a thread off its
    /// list that ends without an allocation since they were installed or removed, and may then hang.
    fn needs_ours(&self, backends: &Backends, ours: &Arc<Driven>) -> bool {
        let can = |each: &Arc<Driven>| each.allocator.require_profiling().is_ok();
        let is_unseen = |each: &Arc<Driven>| is_beside(each) && !is_it(each, ours);
        !ours.is_hooked()
            && !backends.iter().any(can)
            && !backends.iter().any(is_unseen)
            && self.allocators.undrivable().is_none()
    }

    /// Looks after memprof's sampler while it samples. False where it does not.
    pub(super) fn tend_sampler(&self) -> bool {
        let backends = self.allocators.all();
        let ours = backends.iter().filter(|each| each.can_have_ours());
        ours.filter(|each| each.tend()).count() > 0
    }
}

/// The one that memprof's sampler serves, of which there is one in a process: a jemalloc beside
/// `malloc`, which has the program's own heap, else the allocator of `malloc`.
fn best_for_ours(backends: &Backends) -> Option<&Arc<Driven>> {
    let mut able = backends.iter().filter(|each| each.can_have_ours());
    let beside = able.clone().find(|each| is_beside(each));
    beside.or_else(|| able.next())
}

fn is_beside(each: &Arc<Driven>) -> bool {
    let identity = each.identity();
    identity.kind == Kind::Jemalloc && !identity.owns_malloc
}

fn is_it(each: &Arc<Driven>, one: &Arc<Driven>) -> bool {
    Arc::ptr_eq(each, one)
}
