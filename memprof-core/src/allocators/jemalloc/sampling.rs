//! Sampling by jemalloc's built-in profiler.

use std::ffi::CStr;

use memprof_messages::size_text;

use super::Jemalloc;
use crate::allocators::interval::SampleInterval;
use crate::allocators::loaded_objects::is_program_code;
use crate::error::{Error, Result};
use crate::identity::{AllocatorIdentity, FoundBy};

impl Jemalloc {
    /// Whether sampling is on (`prof.active`). False without profiling, or if jemalloc does not report the switch.
    pub(crate) fn is_active(&self) -> bool {
        // Without `opt.prof`, the value of `prof.active` has no meaning.
        self.opt_prof && self.mallctl.read_bool(c"prof.active").unwrap_or(false)
    }

    /// Mean bytes between samples. `None` without profiling (`opt.prof`), or if jemalloc does not report the interval.
    pub(crate) fn sample_interval(&self) -> Option<u64> {
        let lg_sample = self.lg_sample().filter(|_| self.opt_prof)?;
        1u64.checked_shl(lg_sample as u32)
    }

    /// Starts sampling. An `interval` that differs from the current one drops all samples, because jemalloc only
    /// changes it through `prof.reset`. `None` keeps the interval and the samples. Returns warnings for the operator:
    /// that samples were dropped, and that running threads adopt a much shorter interval late. Fails if jemalloc cannot
    /// be profiled, or refuses.
    pub(crate) fn start_sampling(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        self.require_profiling()?;
        let mut warnings = Vec::new();
        let is_new = |interval: &SampleInterval| self.sample_interval() != Some(interval.bytes());
        if let Some(interval) = interval.filter(is_new) {
            let before = self.sample_interval().unwrap_or(0);
            self.reset_samples(Some(interval))?;
            warnings.push("setting the sample interval dropped the samples so far".to_owned());
            if self.serves_program() {
                let warning = slow_threads_warning(&self.identity, before, interval.bytes());
                warnings.extend(warning);
            }
        }
        self.set_active(true)?;
        Ok(warnings)
    }

    /// Whether the program's own threads allocate from this jemalloc, and not only those of a library.
    fn serves_program(&self) -> bool {
        let identity = &self.identity;
        identity.owns_malloc
            || identity.found_by == FoundBy::Host
            || is_program_code(identity.address)
    }

    /// Stops sampling. Does nothing if jemalloc was started without profiling. Fails if jemalloc refuses the change, or
    /// accepts and ignores it.
    pub(crate) fn stop_sampling(&self) -> Result<()> {
        if !self.opt_prof {
            return Ok(());
        }
        self.set_active(false)
    }

    /// Drops all samples, and sets the interval if given; otherwise the interval stays. Fails if jemalloc cannot be
    /// profiled, does not report the interval that must stay, or refuses.
    pub(crate) fn reset_samples(&self, interval: Option<SampleInterval>) -> Result<()> {
        self.require_profiling()?;
        let lg_sample = match interval {
            Some(interval) => Some(u64::from(interval.bytes().ilog2())),
            None => self.lg_sample(),
        };
        let Some(lg_sample) = lg_sample else {
            let message = format!("{} does not report its sample interval", self.identity);
            return Err(Error::allocator(message));
        };
        self.mallctl
            .write(c"prof.reset", lg_sample as usize)
            .map_err(|errno| Error::refused_mallctl("prof.reset", errno))
    }

    /// Whether threads that start from now on are sampled (`prof.thread_active_init`). False without profiling. True if
    /// jemalloc does not report the option.
    pub(crate) fn samples_new_threads(&self) -> bool {
        const INIT: &CStr = c"prof.thread_active_init";
        self.opt_prof && self.mallctl.read_bool(INIT).unwrap_or(true)
    }

    /// Whether some running threads may be unsampled, because they started while `prof.thread_active_init` was false.
    /// Only the thread itself can turn its sampling on (jemalloc(3), `thread.prof.active`).
    pub(crate) fn may_skip_threads(&self) -> bool {
        self.opt_prof && !self.samples_new_threads()
    }

    /// Turns sampling on or off. Fails unless jemalloc then reports the new state: without `opt.prof`, jemalloc 5.2.1
    /// returns success and does nothing.
    fn set_active(&self, active: bool) -> Result<()> {
        self.mallctl
            .write_bool(c"prof.active", active)
            .map_err(|errno| Error::refused_mallctl("prof.active", errno))?;
        if self.is_active() != active {
            let message = format!("{} accepted prof.active and ignored it", self.identity);
            return Err(Error::allocator(message));
        }
        Ok(())
    }
}

/// Factor by which an interval must shrink for [`slow_threads_warning`].
const NOTABLE_INTERVAL_FACTOR: u64 = 8;

/// Returns a warning that running threads take their next sample after the previous interval
/// (`prof_sample_new_event_wait` of jemalloc), so they seem unsampled for long. `before` and `after` are intervals in
/// bytes. `None` if `before` is less than [`NOTABLE_INTERVAL_FACTOR`] times `after`.
fn slow_threads_warning(identity: &AllocatorIdentity, before: u64, after: u64) -> Option<String> {
    (before / NOTABLE_INTERVAL_FACTOR >= after).then(|| {
        format!(
            "each running thread of {identity} takes its next sample by the interval before, after about {} of \
             allocations: `activate sampler=memprof` samples them at once",
            size_text(before)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::fake::Behaviour;
    use crate::allocators::jemalloc::tests::fake_jemalloc;

    struct SilentFake;
    impl Behaviour for SilentFake {}

    #[test]
    fn finer_interval_warns_of_waiting_threads() {
        let identity = fake_jemalloc::<SilentFake>(None).identity;
        let check = |before: u64, after: u64, part: &str| {
            let warning = slow_threads_warning(&identity, before, after).unwrap_or_default();
            assert!(
                warning.contains(part) && part.is_empty() == warning.is_empty(),
                "{warning}"
            );
        };
        check(1 << 30, 1 << 19, "after about 1.0 GiB of allocations");
        check(1 << 22, 1 << 19, "4.0 MiB");
        check(1 << 21, 1 << 19, "");
        check(1 << 19, 1 << 24, "");
        check(0, 1 << 10, "");
    }
}
