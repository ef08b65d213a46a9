//! memprof's sampler while it is selected for one allocator.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use memprof_messages::{SamplerStatus, SlotCounts, UnseenFrees};
use rustix::io::Errno;

use super::allocated_bytes::{AllocatedBytes, allocated_bytes, exact_allocated_bytes};
use super::early_ends::list_early_ends;
use super::fork::register_fork_handler;
use super::interception::Interception;
use super::interception_error::convert_sampler_error;
use super::pinned::PinnedProfile;
use super::profile;
use super::python_objects;
use super::sampled_allocator::is_only_sampled_allocator;
use super::slabs::supports_slab_queries;
use super::unseen_calls::{SampledBytes, UnseenBytes};
use crate::allocators::allocator::Allocator;
use crate::allocators::interval::SampleInterval;
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::unprofilable::no_pinned_profile_error;
use crate::dumps::heap::{ProfileSummary, SamplerSummary, Tally};
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;

/// memprof's sampler, selected for an allocator and locked.
pub(crate) struct SelectedSampler<'a> {
    pub(super) sampler: MutexGuard<'a, Interception>,
    pub(super) interval: &'a AtomicU64,
}

impl SelectedSampler<'_> {
    /// Method of interception, and counts of the sampler since samples were last dropped.
    pub(crate) fn status(self) -> SamplerStatus {
        let counts = memprof_sampler::counts();
        SamplerStatus {
            interception: self.sampler.interception_kind().into(),
            slots: self.sampler.slots,
            samples: counts.samples,
            live_samples: counts.live_samples,
            lost: counts.lost,
            unseen_frees: counts.unseen_frees,
            table_bytes: counts.table_bytes,
        }
    }

    /// Intercepts libraries loaded since the last call, and Python's small objects. A failure is only logged. Returns
    /// false while sampling is off.
    pub(crate) fn maintain_interception(mut self) -> bool {
        let is_active = self.is_active();
        if is_active && let Err(error) = self.sampler.intercept_new_libraries() {
            log::warn!("libraries that were loaded since are not sampled: {error}");
        }
        if is_active {
            self.install_python_hooks();
        }
        is_active
    }

    /// Whether sampling is so expensive that an activation needs a time limit: through jemalloc's hooks, it is.
    pub(crate) fn needs_time_limit(&self) -> bool {
        self.sampler.uses_jemalloc_hooks()
    }

    /// Whether memprof's sampler is on.
    pub(crate) fn is_active(&self) -> bool {
        memprof_sampler::interval() > 0
    }

    /// Current or most recent sample interval in bytes.
    pub(crate) fn interval(&self) -> u64 {
        self.interval.load(Ordering::Relaxed)
    }

    /// Starts sampling for `allocator`. `None` keeps the interval. Drops all samples if the interval or the allocator
    /// changes, or if frees may have been missed since they were taken. Returns warnings for the operator.
    ///
    /// # Errors
    /// `Io`: no memory for the tables. `Busy`: samples must be dropped, but a thread stays inside the sampler.
    /// `Unavailable`: the calls cannot be patched. `Allocator`: jemalloc refused the hooks.
    pub(crate) fn start_sampling(
        mut self,
        interval: Option<SampleInterval>,
        allocator: &Allocator,
    ) -> Result<Vec<String>> {
        let before = self.interval();
        let interval = interval.map_or(before, SampleInterval::bytes);
        let mut warnings = Vec::new();
        self.sampler.set_allocator(allocator.identity())?;
        if interval != before {
            if memprof_sampler::counts().samples > 0 {
                warnings.push(format!(
                    "the samples of one per {before} bytes were dropped: a profile has one interval"
                ));
            }
            self.sampler.drop_samples()?;
        } else if self.needs_time_limit() && !self.is_active() {
            // jemalloc's hooks were removed while sampling was off, so frees in that time are unknown.
            self.sampler.drop_samples()?;
        } else if self.sampler.has_unwatched_samples() {
            warnings.push(
                "the samples of before `memprof attach` changed the calls of malloc were dropped: their frees may have \
                 been missed"
                    .to_owned(),
            );
            self.sampler.drop_samples()?;
        }
        if self.sampler.since.is_none() {
            self.sampler.allocated_at_start = exact_allocated_bytes(allocator);
        }
        register_fork_handler();
        memprof_sampler::start(interval).map_err(convert_sampler_error)?;
        self.interval.store(interval, Ordering::Relaxed);
        if let Err(error) = self.sampler.install() {
            memprof_sampler::stop();
            return Err(error);
        }
        self.install_python_hooks();
        self.sampler.since.get_or_insert_with(SystemTime::now);
        if let Err(error) = allocator.require_profiling() {
            warnings.push(format!("memprof samples in the allocator's place: {error}"));
        }
        if self.needs_time_limit() {
            warnings.push(format!(
                "not for production: {} is linked into the program and is sampled through its own hooks, after which \
                 jemalloc may hang when a thread ends that has allocated nothing since; until `deactivate` a malloc \
                 and its free take about 45 ns longer, and what is freed after `deactivate` stays in the profile",
                allocator.identity()
            ));
        }
        warnings.extend(self.bypass_warnings(allocator.identity()));
        Ok(warnings)
    }

    /// Samples Python's small objects, too. Not with jemalloc's hooks, whose samples do not outlive an activation.
    fn install_python_hooks(&self) {
        if !self.needs_time_limit() {
            python_objects::install_hooks();
        }
    }

    /// Warnings about allocations of the program that bypass the sampler.
    fn bypass_warnings(&self, allocator: &AllocatorIdentity) -> Vec<String> {
        let SlotCounts {
            foreign,
            unseen_objects,
            other_mallocs,
            refused,
            ..
        } = self.sampler.slots;
        let other_libraries = match other_mallocs {
            0 => String::new(),
            1 => " (1 library has a malloc of its own)".to_owned(),
            count => format!(" ({count} libraries have a malloc of their own)"),
        };
        let warnings = [
            (
                foreign,
                format!(
                    "{} another allocator than {allocator}{other_libraries}, which is not sampled",
                    format_count(foreign, "call site uses", "call sites use")
                ),
            ),
            (
                unseen_objects,
                format!(
                    "{} data; allocations by that address are not sampled",
                    format_count(
                        unseen_objects,
                        "library keeps the address of malloc or a relative of it in its",
                        "libraries keep the address of malloc or a relative of it in their"
                    )
                ),
            ),
            (
                refused,
                format!(
                    "{} not be patched: mprotect(2) was refused, and what is allocated there is not sampled",
                    format_count(refused, "call site could", "call sites could")
                ),
            ),
        ];
        let warnings = warnings.into_iter().filter(|(count, _)| *count > 0);
        warnings.map(|(_, text)| text).collect()
    }

    /// Stops sampling. Existing samples are kept.
    ///
    /// # Errors
    /// `Unavailable`: the loader cannot be locked. `Allocator`: jemalloc refused to remove the hooks.
    pub(crate) fn stop_sampling(mut self) -> Result<()> {
        self.sampler.stop_sampling()
    }

    /// Drops all samples, and sets the interval if given. If sampling is on, it starts anew; if not, the interception
    /// is removed.
    ///
    /// # Errors
    /// `Busy`: a thread stays inside the sampler. `Io`: no memory for the tables. `Unavailable`: the loader cannot be
    /// locked. `Allocator`: jemalloc refused to remove the hooks.
    pub(crate) fn reset_samples(mut self, interval: Option<SampleInterval>) -> Result<()> {
        let was_active = self.is_active();
        self.sampler.drop_samples()?;
        self.sampler.since = was_active.then(SystemTime::now);
        if let Some(interval) = interval {
            self.interval.store(interval.bytes(), Ordering::Relaxed);
        }
        if was_active {
            return memprof_sampler::start(self.interval()).map_err(convert_sampler_error);
        }
        self.sampler.uninstall()
    }

    /// Writes a heap profile to the temporary file `scratch`, and compares its bytes with the total of `allocator`, to
    /// detect calls that the sampler did not see.
    ///
    /// # Errors
    /// `Io`: the file cannot be written.
    pub(crate) fn write_profile(
        &self,
        allocator: &Allocator,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        let before = allocated_bytes(allocator);
        let written = scratch
            .rewind_file()
            .and_then(|file| profile::write_heap_profile(self.interval(), file));
        let (summary, sampled) = written.map_err(|error| Error::io("write the dump", &error))?;
        let unseen = before.map_or(UnseenBytes::default(), |before| {
            self.compare_with_total(allocator, before, sampled)
        });
        Ok(ProfileSummary {
            own_sampler: self.sampler_summary(unseen),
            ..summary
        })
    }

    /// Compares the samples of a profile with the bytes that `allocator` holds now and that it held `before` the
    /// profile was written. Returns the bytes of calls that the sampler did not see. Returns zeros with a tally, whose
    /// profile shows an earlier moment, or with samples of several allocators, for which no total exists.
    ///
    /// If the allocator holds less than the samples, repeats the comparison to exclude a coincidence: the program may
    /// have freed much memory in between.
    fn compare_with_total(
        &self,
        allocator: &Allocator,
        before: AllocatedBytes,
        sampled: SampledBytes,
    ) -> UnseenBytes {
        // With a tally, the profile shows an earlier moment. If several allocators are sampled, no total covers them
        // all.
        if memprof_sampler::tally().is_some() || self.sampler.samples_several_allocators() {
            return UnseenBytes::default();
        }
        let at_start = match before.is_exact {
            true => self.sampler.allocated_at_start,
            false => None,
        };
        let compare = |before: AllocatedBytes, sampled: SampledBytes| {
            let after = allocated_bytes(allocator).unwrap_or(before);
            let least = before.bytes.min(after.bytes);
            let most = before.bytes.max(after.bytes);
            sampled.compare_with_total(least..=most, at_start)
        };
        let mut unseen = compare(before, sampled);
        for _ in 0..REPEATED_COMPARISONS {
            if unseen.freed == 0 {
                break;
            }
            thread::sleep(COMPARISON_INTERVAL);
            let before = allocated_bytes(allocator).unwrap_or(before);
            let again = compare(before, profile::sum_sampled_bytes(self.interval()));
            unseen.freed = unseen.freed.min(again.freed);
        }
        unseen
    }

    /// Returns the allocator as a jemalloc that reports the occupancy of its slabs.
    ///
    /// # Errors
    /// `Unsupported`: the allocator does not report it. `Unavailable`: the samples may belong to another allocator, or
    /// to freed memory.
    pub(crate) fn require_slab_occupancy<'a>(
        &self,
        allocator: &'a Allocator,
    ) -> Result<&'a Jemalloc> {
        let identity = allocator.identity();
        let Some(jemalloc) = allocator
            .as_jemalloc()
            .filter(|each| supports_slab_queries(each))
        else {
            return Err(no_pinned_profile_error(identity));
        };
        let unavailable = |message: String| Error::new(ErrorKind::Unavailable, message);
        if !is_only_sampled_allocator(identity) {
            let message = format!(
                "this process also sampled another allocator than {identity}, so samples cannot be assigned to it"
            );
            return Err(unavailable(message).with_remedy("restart the program"));
        }
        if self.sampler.uses_jemalloc_hooks() && !self.is_active() {
            let message = format!("frees of {identity} since `deactivate` are not known");
            let remedy = "`activate sampler=memprof`, and ask again while it is active";
            return Err(unavailable(message).with_remedy(remedy));
        }
        Ok(jemalloc)
    }

    /// Writes a profile to the temporary file `scratch` that shows which stacks' objects pin the slabs of `allocator`:
    /// how many free bytes in slabs these objects keep from being released.
    ///
    /// # Errors
    /// `Unsupported`: the allocator does not report the occupancy of its slabs. `Unavailable`: there are no samples, or
    /// they may belong to another allocator or to freed memory. Otherwise jemalloc or the kernel refused.
    pub(crate) fn write_pinned_profile(
        &self,
        allocator: &Allocator,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        let jemalloc = self.require_slab_occupancy(allocator)?;
        if memprof_sampler::counts().live_samples == 0 {
            let message = "memprof's sampler has no sample of live memory";
            let remedy = "`activate sampler=memprof sample_interval=64KiB`, then let the program allocate, then try again";
            return Err(Error::new(ErrorKind::Unavailable, message).with_remedy(remedy));
        }
        // SAFETY: `require_slab_occupancy` checked that all samples belong to this jemalloc. `DumpSlot::acquire` keeps
        // samples from being cleared during a dump.
        #[expect(unsafe_code, reason = "the sampler's tables")]
        let pinned = unsafe { PinnedProfile::estimate_from_samples(jemalloc, self.interval()) };
        let pinned = pinned.map_err(|errno| match errno {
            Errno::NOMEM => Error::io("weigh the samples", &errno.into()),
            errno => Error::refused_mallctl("experimental.utilization.batch_query", errno),
        })?;
        let written = scratch
            .rewind_file()
            .and_then(|file| profile::write_pinned_profile(&pinned, file));
        let summary = written.map_err(|error| Error::io("write the dump", &error))?;
        Ok(ProfileSummary {
            own_sampler: self.sampler_summary(UnseenBytes::default()),
            ..summary
        })
    }

    /// Counts for the dump's comments, with `unseen`, the bytes of calls that no hook saw. `None` if nothing was
    /// sampled.
    fn sampler_summary(&self, unseen: UnseenBytes) -> Option<SamplerSummary> {
        let counts = memprof_sampler::counts();
        self.sampler.since.map(|since| SamplerSummary {
            samples: counts.samples,
            lost: counts.lost,
            unseen_frees: UnseenFrees {
                samples: counts.unseen_frees,
                bytes: unseen.freed,
            },
            unseen_allocation_bytes: unseen.allocated,
            early_ends: list_early_ends(),
            since,
            tally: memprof_sampler::tally().map(|tally| Tally {
                objects: tally.objects,
                bytes: tally.bytes,
                peak: tally.peak,
            }),
        })
    }
}

/// Number of repeated comparisons that must confirm that the allocator holds less than the samples represent.
const REPEATED_COMPARISONS: u32 = 3;
/// Time between two comparisons.
const COMPARISON_INTERVAL: Duration = Duration::from_millis(10);

/// Formats a count: 1 with the text `one`, any other number with the text `many`.
fn format_count(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}
