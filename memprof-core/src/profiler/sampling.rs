//! Who samples: each allocator for itself, or memprof's sampler for the one that serves `malloc`.

use std::sync::Arc;

use super::{Backends, Profiler};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Kind;
use crate::sampler::Driven;
use crate::sampler::{SamplerChoice, Samples};

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
        let ours = backends.iter().find(|each| each.can_have_ours());
        match (choice, ours) {
            (SamplerChoice::Auto, Some(ours)) if self.needs_ours(backends) => {
                // Where it cannot, the allocators tell what would help.
                let _refused = ours.choose(Samples::InPlace);
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, Some(ours)) => {
                ours.choose(Samples::Not)?;
            }
            (SamplerChoice::Auto | SamplerChoice::Allocator, None) => {}
            (SamplerChoice::Ours, Some(ours)) => {
                ours.choose(Samples::Asked)?;
                let only = backends.iter().filter(|each| each.can_have_ours());
                return Ok(only.cloned().collect());
            }
            (SamplerChoice::Ours, None) => {
                let message =
                    "memprof's sampler serves the allocator of malloc, which is none of these";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .remedy("leave `allocator` out, or see `status`"));
            }
        }
        Ok(Arc::clone(backends))
    }

    /// As before any activation.
    pub(super) fn choose_by_default(&self) {
        if let Err(error) = self.choose_sampler(&self.backends(), SamplerChoice::Auto) {
            log::debug!("{error}");
        }
    }

    /// No allocator can profile, and ours would see what the program allocates: not where a
    /// jemalloc beside `malloc` serves the program by another name.
    fn needs_ours(&self, backends: &Backends) -> bool {
        let can = |each: &Arc<Driven>| each.allocator.require_profiling().is_ok();
        let is_beside = |each: &Arc<Driven>| {
            let identity = each.identity();
            identity.kind == Kind::Jemalloc && !identity.owns_malloc
        };
        let any = |is: &dyn Fn(&Arc<Driven>) -> bool| backends.iter().any(is);
        !any(&can) && !any(&is_beside) && self.undrivable().is_none()
    }

    /// Looks after memprof's sampler while it samples. False where it does not.
    pub(super) fn tend_sampler(&self) -> bool {
        let backends = self.backends();
        let ours = backends.iter().find(|each| each.can_have_ours());
        ours.is_some_and(|each| each.tend())
    }
}
