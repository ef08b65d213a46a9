//! Starts and stops sampling.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::age_clock::AgeBucketWidth;
use super::allocators::BackendList;
use super::earlier_sampling::{EarlierBackend, EarlierSampling};
use super::labels::LabelKeys;
use super::lease::Lease;
use super::sampling_switch::SwitchGuard;
use super::statistics::{jemallocs, read_live_bytes};
use super::{Profiler, error_text_with_remedy, for_each_backend};
use crate::allocators::interval::SampleInterval;
use crate::allocators::unprofilable::Unprofilable;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::languages::prepare_languages;
use crate::system::cancellation::CancelToken;
use crate::system::clock::end_of_time_limit;
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
    /// The reason why no allocator can be profiled, with the remedy for this process. `InvalidArgument`: the time limit
    /// ends after the year 9999. `Busy`: an interval is given while a dump runs. `Unsupported`: ages or labels cannot be
    /// recorded here. `Io`: a thread cannot be started.
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
    /// Fails as `activate` does: no allocator can be profiled, the time limit is too long, a dump runs, ages or labels
    /// cannot be recorded, or a thread cannot be started.
    pub fn activate_without_result(self: &Arc<Self>, options: ActivateOptions) -> Result<()> {
        self.activate_backends(options).map(drop)
    }

    /// Selects the sampler, starts sampling, and installs everything that samples need: walker, labels, ages, periodic
    /// task and lease (time limit). If this fails, sampling is as before, except that an allocator that was not sampled
    /// may keep the new interval.
    ///
    /// # Errors
    /// The reason why no allocator can be profiled. `InvalidArgument`: the time limit ends after the year 9999. `Busy`:
    /// an interval is given while a dump runs. `Unsupported`: ages or labels cannot be recorded here. `Io`: a thread
    /// cannot be started.
    fn activate_backends(self: &Arc<Self>, options: ActivateOptions) -> Result<ActivationOutcome> {
        // Checked first, because sampling starts before the lease.
        let now = SystemTime::now();
        let limit = options
            .duration
            .map(|duration| end_of_time_limit(now, duration));
        limit.transpose()?;
        self.refresh_interception();
        self.allocators.search_if_changed(&self.settings);
        // The switch stays locked for the whole activation. Another thread could otherwise change its state before it is
        // read back, and undoing this activation would undo that thread's work.
        let mut switch = self.switch.lock();
        let times = switch.activation_times();
        let earlier = self.read_backend_states();
        let backends = self.allocators.select_backends(options.allocator)?;
        // Setting an interval may drop samples, which must not happen during a dump.
        let running = options.interval.map(|_| self.dump_slot.acquire());
        let running = running.transpose()?;
        let sampler = options.sampler.unwrap_or(self.settings.sampler);
        let require_heap = |backends: &BackendList| {
            self.allocators
                .require_profile_kind(backends, ProfileKind::Heap)
        };
        let selected = self.select_sampler(&backends, sampler);
        let selected = selected.and_then(|backends| require_heap(&backends).map(|()| backends));
        let backends = selected.inspect_err(|_| self.undo_activation(&mut switch, &earlier))?;
        let is_fresh = times.since.is_none();
        let unseen_bytes = match (is_fresh, &running) {
            (false, _) => None,
            (true, Some(_)) => read_live_bytes(&backends),
            (true, None) => self.live_bytes_unless_busy(&backends),
        };
        let started = self.start_backends(&mut switch, &backends, &options);
        let (lease, warnings) =
            started.inspect_err(|_| self.undo_activation(&mut switch, &earlier))?;
        switch.mark_active(unseen_bytes);
        let unlimited = times.since.filter(|_| times.deadline.is_none());
        // Before the lease, because a running lease keeps the state from before it.
        switch.set_state_before_lease(unlimited.map(|since| EarlierSampling {
            since,
            backends: earlier.into_iter().filter(|each| each.is_active).collect(),
        }));
        switch.set_lease(lease);
        Ok(ActivationOutcome {
            is_fresh,
            unseen_bytes,
            warnings,
        })
    }

    /// Undoes an activation that failed: restores the sampling of `earlier`, and records that sampling is off if no
    /// allocator is sampled then. If one still is, the labels and ages of the failed activation stay, and its walkers
    /// stay if a periodic task maintains them. Errors are only logged, because the caller returns that of the
    /// activation.
    fn undo_activation(self: &Arc<Self>, switch: &mut SwitchGuard<'_>, earlier: &[EarlierBackend]) {
        if let Err(error) = self.restore_backends(earlier) {
            log::error!("sampling is not as before the activation that failed: {error}");
        }
        if self.allocators.is_active() {
            // The earlier task ends by itself if it finds the sampler stopped.
            match self.start_periodic_task() {
                Ok(task) => switch.set_periodic_task(task),
                Err(_) => switch.uninstall_unmaintained_walkers(),
            }
        } else if let Err(error) = switch.uninstall_parts_and_mark_inactive() {
            log::error!("{error}");
        }
    }

    /// Starts sampling in `backends`, with everything that samples need. Returns the lease that ends it (`None` without
    /// a time limit), and warnings. If no duration is requested, a backend that is too expensive to be left on gets the
    /// time limit [`DEFAULT_LEASE`].
    ///
    /// # Errors
    /// A backend refused. `Unsupported`: ages or labels cannot be recorded here. `Io`: a thread cannot be started. The
    /// steps before the failure are not undone.
    fn start_backends(
        self: &Arc<Self>,
        switch: &mut SwitchGuard<'_>,
        backends: &BackendList,
        options: &ActivateOptions,
    ) -> Result<(Option<Lease>, Vec<String>)> {
        let mut warnings = switch.install_walkers(&jemallocs(backends), options.unwinder);
        match (options.ages, &options.labels) {
            (None, None) => {}
            (Some(_), _) => self.require_own_walker(backends, "ages")?,
            (None, Some(_)) => self.require_own_walker(backends, "labels")?,
        }
        switch.set_labels(options.labels.as_ref())?;
        switch.set_age_width(options.ages);
        let is_sampled = backends.iter().any(|each| each.sampler_status().is_some());
        prepare_languages(options.languages, is_sampled);
        warnings.extend(for_each_backend(backends, |each| {
            each.start_sampling(options.interval)
        })?);
        let periodic_task = self.start_periodic_task()?;
        let needs_time_limit = backends.iter().any(|each| each.needs_time_limit());
        let duration = options
            .duration
            .or(needs_time_limit.then_some(DEFAULT_LEASE));
        let lease = duration
            .map(|duration| self.start_lease(duration))
            .transpose()?;
        switch.set_periodic_task(periodic_task);
        Ok((lease, warnings))
    }

    /// Stops sampling in the allocators of the kind `allocator`, or in all if it is `None`. Also ends the time limit.
    /// Existing samples are kept, and frees are still recorded.
    ///
    /// # Errors
    /// The error of the first allocator that refused; the others are still deactivated. `Unsupported`: there is no
    /// allocator of that kind.
    pub fn deactivate(&self, allocator: Option<AllocatorKind>) -> Result<ActivationResult> {
        // `status` locks the switch again.
        self.stop_backends(&mut self.switch.lock(), allocator)?;
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

    /// Stops sampling as [`deactivate`](Self::deactivate) does, and fails as it does.
    fn stop_backends(
        &self,
        switch: &mut SwitchGuard<'_>,
        allocator: Option<AllocatorKind>,
    ) -> Result<()> {
        let backends = match allocator {
            None => self.allocators.all_backends(),
            named => self.allocators.select_backends(named)?,
        };
        // Collected, so that all are deactivated even if one refuses.
        let errors: Vec<_> = backends
            .iter()
            .filter_map(|each| each.stop_sampling().err())
            .collect();
        if !self.allocators.is_active() {
            switch.uninstall_parts_and_mark_inactive()?;
        }
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        switch.set_lease(None);
        // After the lease, because the state stays stored while a lease is running.
        switch.set_state_before_lease(None);
        Ok(())
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
        let backends = self.allocators.select_backends(allocator)?;
        let mut warnings = for_each_backend(&backends, |each| {
            each.reset_samples(interval).map(|()| Vec::new())
        })?;
        // Released first, so that the status does not report a running dump.
        drop(running);
        warnings.push("all samples so far were dropped".to_owned());
        Ok(ActivationResult {
            status: self.status(),
            begun: false,
            unseen_bytes: None,
            warnings,
        })
    }

    /// Fails unless memprof walks the stacks of samples, because only memprof's walks append ages and labels. `feature`
    /// is the requested feature, for the error message.
    ///
    /// # Errors
    /// `Unsupported`: neither memprof's stack walker nor its sampler is in use.
    fn require_own_walker(&self, backends: &BackendList, feature: &str) -> Result<()> {
        let samples = backends.iter().any(|each| each.sampler_status().is_some());
        if samples || self.switch.has_own_walker() {
            return Ok(());
        }
        let message = format!(
            "{feature} need memprof's stack walk or its sampler, and neither is in use here"
        );
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
            .with_remedy(format!("activate sampler=memprof, or leave {feature} out")))
    }

    /// Starts a lease (time limit) for the current activation. After `duration`, its thread stops sampling, or restores
    /// the sampling that was on before.
    ///
    /// # Errors
    /// `Io`: the thread cannot be started.
    fn start_lease(self: &Arc<Self>, duration: Duration) -> Result<Lease> {
        // A weak reference: the lease must not keep the profiler alive when the host ends.
        let profiler = Arc::downgrade(self);
        Lease::start(duration, move |lease| {
            let Some(profiler) = profiler.upgrade() else {
                return;
            };
            profiler.exclude_this_thread();
            match profiler.end_lease(lease) {
                Ok(Some(text)) => log::info!("{text}: its time is over"),
                Ok(None) => {}
                Err(error) => log::error!("profiling could not be ended in time: {error}"),
            }
        })
    }

    /// Ends an activation whose time limit has passed: stops sampling, or restores the sampling that was on before.
    /// Returns the new state as text. Does nothing and returns `None` if `lease` was cancelled meanwhile, by another
    /// activation or by `deactivate`.
    ///
    /// # Errors
    /// An allocator refused.
    fn end_lease(self: &Arc<Self>, lease: &CancelToken) -> Result<Option<&'static str>> {
        let mut switch = self.switch.lock();
        // A lease is only cancelled by a holder of the switch's lock.
        if lease.is_cancelled() {
            return Ok(None);
        }
        let Some(earlier) = switch.take_state_before_lease() else {
            self.stop_backends(&mut switch, None)?;
            return Ok(Some("profiling is inactive"));
        };
        self.restore_backends(&earlier.backends)?;
        self.restart_periodic_task(&mut switch);
        switch.set_age_width(None);
        switch.set_labels(None)?;
        switch.set_lease(None);
        switch.mark_active_since(earlier.since);
        Ok(Some("profiling goes on as before the activation"))
    }

    /// Makes memprof's sampler intercept newly loaded libraries, and starts the periodic task that does so from now on.
    /// Does nothing if the sampler is off; it may be on before this profiler is created. A failure is only logged.
    pub fn start_task_of_running_sampler(self: &Arc<Self>) {
        if !self.maintain_sampler() {
            return;
        }
        self.restart_periodic_task(&mut self.switch.lock());
    }

    /// Replaces the periodic task, which maintains memprof's stack walker and sampler. Only ends the earlier task if
    /// none is needed. A failure is only logged.
    fn restart_periodic_task(self: &Arc<Self>, switch: &mut SwitchGuard<'_>) {
        match self.start_periodic_task() {
            Ok(task) => switch.set_periodic_task(task),
            Err(error) => log::warn!("libraries that are loaded later are not sampled: {error}"),
        }
    }

    /// Starts the task that maintains memprof's stack walker and sampler. `None` if neither is in use.
    ///
    /// # Errors
    /// `Io`: its thread cannot be started.
    fn start_periodic_task(self: &Arc<Self>) -> Result<Option<PeriodicTask>> {
        let for_sampler = self.maintain_sampler();
        let is_needed = for_sampler || self.switch.has_own_walker();
        // A weak reference: the thread must not keep the profiler alive when the host ends.
        let profiler = Arc::downgrade(self);
        let work = move || {
            // True to be called again: a walker or the sampler is still in use.
            profiler.upgrade().is_some_and(|profiler| {
                profiler.exclude_this_thread();
                let has_walker = profiler.switch.maintain_unwinder_and_ages();
                profiler.maintain_sampler() || has_walker
            })
        };
        is_needed
            .then(|| PeriodicTask::start(for_sampler, work))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use memprof_own::page_size;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::allocators::fake::{Behaviour, fake_mallctl};
    use crate::profiler::tests::new_profiler;
    use crate::system::cancellation::create_cancel_pair;

    /// A jemalloc that can be activated.
    struct SwitchableFake;
    static PROF_ACTIVE: AtomicBool = AtomicBool::new(false);
    impl Behaviour for SwitchableFake {
        fn prof_active() -> Option<&'static AtomicBool> {
            Some(&PROF_ACTIVE)
        }
    }

    struct UnswitchedFake;
    impl Behaviour for UnswitchedFake {}

    /// Runs `test` in a process of its own, unless this is that process. Returns whether it is.
    fn is_process_of_its_own(test: &str) -> bool {
        const MARK: &str = "MEMPROF_TEST_PROCESS";
        if env::var_os(MARK).is_some() {
            return true;
        }
        let mut process = Command::new(env::current_exe().unwrap());
        let output = process.args([test, "--exact"]).env(MARK, "1").output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        false
    }

    /// As if its time was over while an activation held the switch.
    #[test]
    fn lease_that_another_activation_replaced_ends_nothing() {
        let test = "lease_that_another_activation_replaced_ends_nothing";
        if !is_process_of_its_own(&format!("profiler::activation::tests::{test}")) {
            return;
        }
        let (profiler, _directory) = new_profiler(Some(fake_mallctl::<SwitchableFake>()));
        let activate = |duration| {
            let options = ActivateOptions {
                allocator: Some(AllocatorKind::Jemalloc),
                duration,
                ..ActivateOptions::default()
            };
            profiler.activate(options).unwrap();
        };
        let (cancel, lease) = create_cancel_pair();
        activate(Some(DEFAULT_LEASE));
        drop(cancel);
        assert_eq!(profiler.end_lease(&lease), Ok(None));
        assert!(PROF_ACTIVE.load(Ordering::Relaxed));
        assert!(profiler.switch.activation_times().deadline.is_some());
        let (_cancel, lease) = create_cancel_pair();
        let ended = profiler.end_lease(&lease);
        assert_eq!(ended, Ok(Some("profiling is inactive")));
        assert!(!PROF_ACTIVE.load(Ordering::Relaxed));
        assert!(profiler.switch.activation_times().deadline.is_none());
    }

    #[test]
    fn activation_beyond_the_clock_starts_nothing() {
        let (profiler, _directory) = new_profiler(Some(fake_mallctl::<UnswitchedFake>()));
        let options = ActivateOptions {
            duration: Some(Duration::MAX),
            ..ActivateOptions::default()
        };
        let refused = profiler.activate(options).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
        assert!(profiler.switch.activation_times().since.is_none());
    }

    #[test]
    fn activation_without_thread_for_its_lease_leaves_sampling_as_before() {
        let test = "activation_without_thread_for_its_lease_leaves_sampling_as_before";
        if !is_process_of_its_own(&format!("profiler::activation::tests::{test}")) {
            return;
        }
        let check = |was_active: bool| {
            PROF_ACTIVE.store(was_active, Ordering::Relaxed);
            let (profiler, _directory) = new_profiler(Some(fake_mallctl::<SwitchableFake>()));
            let before = profiler.switch.activation_times();
            assert_eq!(before.since.is_some(), was_active);
            let read_pages = || -> usize {
                let sizes = fs::read_to_string("/proc/thread-self/statm").unwrap();
                sizes.split(' ').next().unwrap().parse().unwrap()
            };
            // The dumper's thread is starting: glibc maps 64 MiB too much for a moment, to align its heap.
            let mut pages = 0;
            while pages != read_pages() {
                pages = read_pages();
                std::thread::sleep(Duration::from_millis(20));
            }
            // A thread needs 8 MiB.
            let bytes = pages * page_size() + (4 << 20);
            let before_limit = getrlimit(Resource::As);
            let set_limit = |current| {
                let maximum = before_limit.maximum;
                setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
            };
            set_limit(Some(bytes as u64));
            let refused = profiler.activate(ActivateOptions {
                allocator: Some(AllocatorKind::Jemalloc),
                duration: Some(DEFAULT_LEASE),
                ..ActivateOptions::default()
            });
            set_limit(before_limit.current);
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Io, "{refused}");
            assert_eq!(PROF_ACTIVE.load(Ordering::Relaxed), was_active);
            let after = profiler.switch.activation_times();
            assert_eq!((after.since, after.deadline), (before.since, None));
        };
        check(false);
        check(true);
    }
}
