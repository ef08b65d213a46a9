//! Takes dumps of all allocators that can be profiled.

use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::rand::GetRandomFlags;

use super::labels;
use super::take_dump::{self, DumpOrigin, InMemoryDump};
use super::thread_exclusion::exclude_this_thread;
use super::unprofiled_memory::{UnprofiledMemory, builtin_samplers, unprofiled_warnings};
use super::{Profiler, statistics};
use crate::allocators::interval::SampleInterval;
use crate::dumps::headroom;
use crate::dumps::hidden_file;
use crate::dumps::name::{DumpCause, DumpName};
use crate::dumps::scratch::Scratch;
use crate::dumps::store::Store;
use crate::dumps::trigger::Trigger;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::Backend;
use crate::system::clock::format_rfc3339;
use crate::system::seccomp;
use crate::watching::memory_reading::read_rss;
use memprof_messages::{
    AllocatorKind, Dump, DumpReport, EarlyEndReason, LabelSetStats, ProfileKind, SamplerStatus,
    UnseenFrees, format_size, size_text,
};

/// Allocators to dump together, with the kind and origin of their dumps.
struct DumpRound {
    backends: Arc<[Arc<Backend>]>,
    kind: ProfileKind,
    origin: DumpOrigin,
}

/// Function that takes one dump. It runs on the dumper's thread.
type TakeDumpFn<T> = fn(&Backend, &Store, &DumpName, &DumpOrigin, &Scratch) -> Result<T>;

impl Profiler {
    /// Takes and stores a dump of every allocator that can be profiled, among those of the kind `allocator`, or among
    /// the default ones if it is `None`.
    ///
    /// # Errors
    /// `Busy` while another dump runs. Otherwise the reason why profiling is impossible, or an error of the system.
    pub fn dump(
        &self,
        allocator: Option<AllocatorKind>,
        kind: ProfileKind,
        trigger: Trigger,
    ) -> Result<DumpReport> {
        let _running = self.dump_slot.acquire()?;
        let start = Instant::now();
        let round = self.prepare_dump_round(allocator, kind, trigger)?;
        // Checked first, because an allocator may hold locks while it writes a dump, which would be for nothing if the
        // dump cannot be stored.
        self.settings.store.require_writable()?;
        let dumps = self.dump_each_backend(&round, take_dump::take_and_store_dump)?;
        let active_since = round.origin.active_since;
        let largest = dumps
            .iter()
            .max_by_key(|dump| dump.estimated_inuse_bytes)
            .cloned()
            .ok_or_else(no_dump_error)?;
        self.dump_slot.record_dump_size(largest.bytes);
        Ok(DumpReport {
            warnings: match kind {
                ProfileKind::Heap => {
                    let mut warnings = no_samples_warnings(&dumps, active_since, SystemTime::now());
                    let live = statistics::read_live_bytes(&round.backends);
                    warnings.extend(live.into_iter().flat_map(|live| {
                        unprofiled_warnings(&UnprofiledMemory {
                            live,
                            shown: dumps
                                .iter()
                                .map(|dump| dump.estimated_inuse_bytes)
                                .fold(0, u64::saturating_add),
                            stacks: dumps.iter().map(|dump| dump.stacks).sum(),
                            before: self.switch.live_bytes_at_start(),
                            samplers: builtin_samplers(&round.backends),
                        })
                    }));
                    let labels = self.switch.label_keys();
                    let has_pseudo_frames = self.switch.age_width().is_some() || !labels.is_empty();
                    warnings.extend(has_pseudo_frames.then(|| PSEUDO_FRAMES_WARNING.to_owned()));
                    let samplers = round
                        .backends
                        .iter()
                        .filter_map(|each| Some((each.sampler_status()?, each.sample_interval())));
                    warnings.extend(
                        samplers.flat_map(|(sampler, interval)| {
                            lost_sample_warnings(&sampler, interval)
                        }),
                    );
                    // Put before the other warnings.
                    warnings.splice(0..0, dumps.iter().flat_map(unseen_call_warnings));
                    warnings.extend(dumps.iter().filter_map(early_end_warning));
                    warnings.extend(round.backends.iter().filter_map(|each| stall_warning(each)));
                    let sets = labels::label_set_stats().filter(|_| !labels.is_empty());
                    warnings.extend(sets.and_then(label_set_warning));
                    warnings
                }
                ProfileKind::Growth | ProfileKind::Pinned => Vec::new(),
            },
            largest,
            active_since: active_since.map(format_rfc3339),
            duration_ms: start.elapsed().as_millis() as u64,
            dumps,
        })
    }

    /// Takes a dump into memory without storing it: of the allocators of the kind `allocator`, or of the default ones
    /// if it is `None`. If several can be dumped, returns the dump with the most bytes in use.
    ///
    /// # Errors
    /// `Busy` while another dump runs. Otherwise the reason why profiling is impossible, or an error of the system.
    pub fn dump_in_memory(
        &self,
        allocator: Option<AllocatorKind>,
        kind: ProfileKind,
    ) -> Result<InMemoryDump> {
        let _running = self.dump_slot.acquire()?;
        let round = self.prepare_dump_round(allocator, kind, Trigger::Message)?;
        let dumps = self.dump_each_backend(&round, take_dump::take_dump_in_memory)?;
        let largest = dumps
            .into_iter()
            .max_by_key(|dump| dump.estimated_inuse_bytes);
        largest.ok_or_else(no_dump_error)
    }

    /// Searches for new allocators, and selects those of the kind `allocator`, or the default ones if it is `None`.
    /// Collects the facts that the dump records about its origin. Also clears outdated unwind rules.
    ///
    /// # Errors
    /// `Io`: memory is short. Otherwise the reason why no allocator has this kind of profile.
    fn prepare_dump_round(
        &self,
        allocator: Option<AllocatorKind>,
        kind: ProfileKind,
        trigger: Trigger,
    ) -> Result<DumpRound> {
        headroom::require_dump_memory()?;
        self.allocators.search_if_changed(&self.settings);
        self.switch.maintain_unwinder();
        let backends = self.allocators.select_backends(allocator)?;
        self.allocators.require_profile_kind(&backends, kind)?;
        let origin = DumpOrigin {
            program: self.settings.program.clone(),
            started: self.started,
            active_since: self.switch.activation_times().since,
            trigger,
            rss: read_rss().inspect_err(|error| log::debug!("{error}")).ok(),
            ages: self.switch.age_header_line(),
        };
        Ok(DumpRound {
            backends,
            kind,
            origin,
        })
    }

    /// Calls `take` for each backend of the round that has this kind of profile. Returns the results in the order of
    /// the backends, or the first error.
    fn dump_each_backend<T: Send + 'static>(
        &self,
        round: &DumpRound,
        take: TakeDumpFn<T>,
    ) -> Result<Vec<T>> {
        let has_profile = |each: &&Arc<Backend>| each.require_profile_kind(round.kind).is_ok();
        let each = round.backends.iter().filter(has_profile);
        each.map(|backend| self.dump_backend(Arc::clone(backend), round, take))
            .collect()
    }

    /// Dumps one backend (an allocator with its sampler) on the dumper's thread. Meanwhile, this thread polls the
    /// memory that the process may still get, and abandons the dump if it runs short. If the backend has no estimate of
    /// the memory that its dump needs, the size of the last dump gives one.
    ///
    /// # Errors
    /// `Io`: memory is short, a seccomp filter forbids a system call, no scratch file can be created, or the thread
    /// cannot be started. Otherwise the error of `take`.
    fn dump_backend<T: Send + 'static>(
        &self,
        backend: Arc<Backend>,
        round: &DumpRound,
        take: TakeDumpFn<T>,
    ) -> Result<T> {
        let origin = round.origin.clone();
        let name = self.create_dump_name(round.kind, &origin)?;
        let store = self.settings.store.clone();
        let bytes = backend.profile_memory_estimate(round.kind);
        let bytes = bytes.unwrap_or_else(|| self.dump_slot.expected_dump_bytes());
        headroom::require_headroom(bytes)?;
        seccomp::require_seccomp_allows_calls()?;
        let hidden = hidden_file::hidden_file_name(&name, ".scratch");
        let scratch = Arc::new(Scratch::create(store.directory(), &hidden)?);
        let polled = Arc::clone(&scratch);
        let all = self.allocators.all_backends();
        let take = move || {
            exclude_this_thread(&all);
            take(&backend, &store, &name, &origin, &scratch)
        };
        self.dump_slot.dumper.run_with_poll(take, || {
            polled.abandon_on_shortage(|written| {
                headroom::current_shortage_error(bytes.saturating_sub(written))
            })
        })?
    }

    /// Creates a unique name for a dump that is about to be taken, with the current time and the next sequence number.
    ///
    /// # Errors
    /// `Io`: the kernel provides no random bytes.
    fn create_dump_name(&self, kind: ProfileKind, origin: &DumpOrigin) -> Result<DumpName> {
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())
            .map_err(|errno| Error::io("get random bytes", &errno.into()))?;
        Ok(DumpName {
            taken: SystemTime::now(),
            pid: process::id(),
            sequence: self.dump_slot.increment_sequence(),
            random: u32::from_ne_bytes(random),
            cause: origin.rss.map(|rss| DumpCause {
                trigger: origin.trigger.kind(),
                rss_kib: rss / 1024,
            }),
            kind,
        })
    }
}

/// `Internal` error, for the impossible case that `require_profile_kind` passed but no backend was dumped.
fn no_dump_error() -> Error {
    Error::new(ErrorKind::Internal, "no allocator was dumped")
}

/// Warning if samples had more label sets (combinations of labels) than there is space for. `None` if not.
fn label_set_warning(sets: LabelSetStats) -> Option<String> {
    let LabelSetStats { most, others, .. } = sets;
    (others > 0).then(|| {
        format!(
            "{others} samples had other labels than the first {most} sets, and are shown as [other]: choose labels \
             with fewer values, not one that differs in each request"
        )
    })
}

/// Warning that samples were lost, so that a profile of memprof's sampler shows too little. Empty if none were.
/// `interval` is the current sample interval in bytes, from which the remedy derives a coarser one; `None` counts as 0.
fn lost_sample_warnings(
    sampler: &SamplerStatus,
    interval: Option<u64>,
) -> impl Iterator<Item = String> + use<> {
    let SamplerStatus { samples, lost, .. } = *sampler;
    let lost = (lost > 0).then(|| {
        let interval = SampleInterval::for_lossless_sampling(interval.unwrap_or_default(), samples, lost);
        let interval = format_size(interval.bytes());
        format!(
            "{lost} of {samples} samples were lost, because memprof's tables were full of stacks whose memory lives, \
             so values are too low: `reset sample_interval={interval}` samples more coarsely"
        )
    });
    lost.into_iter()
}

/// Remedy if memprof's sampler misses calls of malloc and free.
fn unseen_calls_remedy() -> String {
    format!(
        "`memprof attach {} --entries`, then `deactivate` and `activate`, see every call",
        std::process::id()
    )
}

/// Warnings that memprof's sampler missed calls: without frees, a dump shows freed memory; without allocations, it
/// lacks memory.
fn unseen_call_warnings(dump: &Dump) -> impl Iterator<Item = String> + use<> {
    let frees = dump.unseen_frees.map(|UnseenFrees { samples, bytes }| {
        let sign = match bytes {
            0 => format!(
                "{samples} sampled blocks were given out again though memprof saw no free of them, so the profile may \
                 show freed memory as live"
            ),
            bytes => format!(
                "about {} of what the profile shows as live was freed: it shows more than {} itself holds, so none \
                 of its rows proves a leak",
                size_text(bytes),
                dump.allocator
            ),
        };
        let remedy = unseen_calls_remedy();
        format!("{sign}; the program frees by addresses that it keeps in its data; {remedy}")
    });
    let allocations = dump.unseen_allocation_bytes.map(|bytes| {
        format!(
            "about {} of live bytes are not in it, though they were allocated while memprof sampled: by calls that \
             it does not see, of the dynamic loader (thread-local storage), of a library in its first moments, or by \
             an address of malloc that the program keeps; {}",
            size_text(bytes),
            unseen_calls_remedy()
        )
    });
    frees.into_iter().chain(allocations)
}

/// Warning that stacks lack their outermost frames. Names the reason and the file of most of them. `None` if all are
/// complete.
fn early_end_warning(dump: &Dump) -> Option<String> {
    let most = dump.early_ends.first()?;
    let samples: u64 = dump.early_ends.iter().map(|each| each.samples).sum();
    let file = most.object.as_deref().and_then(Path::file_name);
    let place = file.map_or_else(String::new, |file| format!(" in {}", file.display()));
    let remedy = match most.reason == EarlyEndReason::UnknownCode {
        true => {
            "; a runtime that compiles code may keep frame pointers (java -XX:+PreserveFramePointer)"
        }
        false => "",
    };
    Some(format!(
        "the stacks of {samples} samples end early, so callers are missing; mostly{place}: {}{remedy}",
        most.reason
    ))
}

/// Stall of a dump that the operator should know of: a server's clients notice it.
const NOTABLE_STALL: Duration = Duration::from_millis(50);

/// Warning that the last dump stalled the program's threads. If memprof's sampler can sample the allocator without
/// stalls, suggests it. `None` for a stall below [`NOTABLE_STALL`], or if the samples are already memprof's.
fn stall_warning(backend: &Backend) -> Option<String> {
    let stall = backend
        .last_dump_stall()
        .filter(|stall| *stall >= NOTABLE_STALL)?;
    let remedy = match backend.supports_own_sampler() {
        true => "; `activate sampler=memprof` samples without that",
        false => "",
    };
    Some(format!(
        "threads that allocated may have waited up to {} ms, because {} holds locks of its profiler during a dump{remedy}",
        stall.as_millis(),
        backend.identity()
    ))
}

/// Warning about a dump whose stacks end in pseudo frames.
const PSEUDO_FRAMES_WARNING: &str = "its stacks contain ages or labels, which other tools would read as addresses: \
     convert it for them with `memprof report --format jeprof`";

/// Warnings that explain dumps without samples, or with only old samples because sampling is off. `active_since` is the
/// start of sampling; `None` while it is off.
fn no_samples_warnings(
    dumps: &[Dump],
    active_since: Option<SystemTime>,
    now: SystemTime,
) -> Vec<String> {
    let mut warnings = Vec::new();
    match active_since {
        None => warnings.push(
            "profiling is inactive: the dump holds only what was sampled before and still lives; \
             send `activate`, wait, dump again"
                .to_owned(),
        ),
        Some(since) if dumps.iter().all(|dump| dump.stacks == 0) => {
            let elapsed = now.duration_since(since).unwrap_or(Duration::ZERO);
            warnings.push(format!(
                "no samples yet: profiling became active {} ago and samples about once every {} \
                 allocated bytes",
                humantime::format_duration(Duration::from_secs(elapsed.as_secs())),
                dumps.first().map_or(0, |dump| dump.sample_interval),
            ));
        }
        Some(_) => {}
    }
    warnings
}
