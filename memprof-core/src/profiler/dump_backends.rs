//! A dump of every allocator that profiles.

use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::rand::GetRandomFlags;

use super::labels;
use super::take_dump::{self, DumpOrigin, InMemoryDump};
use super::thread_exclusion::exclude_this_thread;
use super::{Profiler, SEEN_FROM_THE_START, rfc3339, statistics};
use crate::dumps::headroom;
use crate::dumps::hidden;
use crate::dumps::name::{DumpCause, DumpName};
use crate::dumps::scratch::Scratch;
use crate::dumps::store::Store;
use crate::dumps::trigger::Trigger;
use crate::error::{Error, ErrorKind, Result};
use crate::sampler::Backend;
use crate::system::seccomp;
use crate::watching::memory_reading::read_rss;
use memprof_messages::{
    AllocatorKind, Dump, DumpReport, LabelSetStats, ProfileKind, SamplerStatus,
};

/// What is dumped at a time, and how it came to that.
struct DumpRound {
    backends: Arc<[Arc<Backend>]>,
    kind: ProfileKind,
    origin: DumpOrigin,
}

/// Takes one dump, on the dumper's thread.
type Take<T> = fn(&Backend, &Store, &DumpName, &DumpOrigin, &Scratch) -> Result<T>;

impl Profiler {
    /// Takes a dump of every allocator that can, of those that `allocator` names, else of those
    /// that are driven; and keeps it.
    ///
    /// # Errors
    /// `Busy` while another one runs; why profiling is not on; what the system refused.
    pub fn dump(
        &self,
        allocator: Option<AllocatorKind>,
        kind: ProfileKind,
        trigger: Trigger,
    ) -> Result<DumpReport> {
        let _running = self.dump_slot.acquire()?;
        let begun = Instant::now();
        let round = self.prepare(allocator, kind, trigger)?;
        // An allocator may hold locks while it writes what could not be kept.
        self.settings.store.require_writable()?;
        let dumps = self.dump_each(&round, take_dump::take)?;
        let active_since = round.origin.active_since;
        let largest = dumps
            .iter()
            .max_by_key(|dump| dump.estimated_inuse_bytes)
            .cloned()
            .ok_or_else(no_dump_error)?;
        self.dump_slot.record_size(largest.bytes);
        Ok(DumpReport {
            warnings: match kind {
                ProfileKind::Heap => {
                    let mut warnings = explain(&dumps, active_since, SystemTime::now());
                    let was_late = active_since.is_some_and(|since| since > self.started);
                    let live = statistics::live(&round.backends).filter(|_| was_late);
                    warnings.extend(live.and_then(|live| unprofiled_warning(&dumps, live)));
                    let labels = self.switch.labels();
                    let is_marked = self.switch.age_width().is_some() || !labels.is_empty();
                    warnings.extend(is_marked.then(|| READ_BY_MEMPROF.to_owned()));
                    let samplers = round
                        .backends
                        .iter()
                        .filter_map(|each| each.sampler_status());
                    warnings.extend(samplers.flat_map(|sampler| faults(&sampler)));
                    let sets = labels::set_stats().filter(|_| !labels.is_empty());
                    warnings.extend(sets.and_then(more_labels));
                    warnings
                }
                ProfileKind::Growth | ProfileKind::Pinned => Vec::new(),
            },
            largest,
            active_since: active_since.map(rfc3339),
            duration_ms: begun.elapsed().as_millis() as u64,
            dumps,
        })
    }

    /// Takes a dump into memory, which is kept nowhere: the largest, where several allocators can.
    ///
    /// # Errors
    /// As for [`dump`](Self::dump).
    pub fn dump_in_memory(
        &self,
        allocator: Option<AllocatorKind>,
        kind: ProfileKind,
    ) -> Result<InMemoryDump> {
        let _running = self.dump_slot.acquire()?;
        let round = self.prepare(allocator, kind, Trigger::Message)?;
        let dumps = self.dump_each(&round, take_dump::take_in_memory)?;
        let largest = dumps
            .into_iter()
            .max_by_key(|dump| dump.estimated_inuse_bytes);
        largest.ok_or_else(no_dump_error)
    }

    fn prepare(
        &self,
        allocator: Option<AllocatorKind>,
        kind: ProfileKind,
        trigger: Trigger,
    ) -> Result<DumpRound> {
        headroom::require_memory()?;
        self.allocators.refresh(&self.settings);
        self.switch.maintain_unwinder();
        let backends = self.allocators.backends_for(allocator)?;
        self.allocators.require_profile(&backends, kind)?;
        let origin = DumpOrigin {
            program: self.settings.program.clone(),
            started: self.started,
            active_since: self.switch.activation().since,
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

    fn dump_each<T: Send + 'static>(&self, round: &DumpRound, take: Take<T>) -> Result<Vec<T>> {
        let can = |each: &&Arc<Backend>| each.require_profile(round.kind).is_ok();
        let each = round.backends.iter().filter(can);
        each.map(|backend| self.dump_one(Arc::clone(backend), round, take))
            .collect()
    }

    fn dump_one<T: Send + 'static>(
        &self,
        backend: Arc<Backend>,
        round: &DumpRound,
        take: Take<T>,
    ) -> Result<T> {
        let origin = round.origin.clone();
        let name = self.next_name(round.kind, &origin)?;
        let store = self.settings.store.clone();
        let bytes = backend.profile_bytes(round.kind);
        let bytes = bytes.unwrap_or_else(|| self.dump_slot.expected_bytes());
        headroom::require(bytes)?;
        seccomp::require_calls()?;
        let hidden = hidden::name(&name, ".scratch");
        let scratch = Arc::new(Scratch::open(store.directory(), &hidden)?);
        let watched = Arc::clone(&scratch);
        let all = self.allocators.all();
        let take = move || {
            exclude_this_thread(&all);
            take(&backend, &store, &name, &origin, &scratch)
        };
        self.dump_slot.dumper.run_with_poll(take, || {
            watched.poll_headroom(|written| headroom::shortage(bytes.saturating_sub(written)))
        })?
    }

    fn next_name(&self, kind: ProfileKind, origin: &DumpOrigin) -> Result<DumpName> {
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())
            .map_err(|errno| Error::io("get random bytes", &errno.into()))?;
        Ok(DumpName {
            taken: SystemTime::now(),
            pid: process::id(),
            sequence: self.dump_slot.next_number(),
            random: u32::from_ne_bytes(random),
            cause: origin.rss.map(|rss| DumpCause {
                trigger: origin.trigger.kind(),
                rss_kib: rss / 1024,
            }),
            kind,
        })
    }
}

fn no_dump_error() -> Error {
    Error::new(ErrorKind::Internal, "no allocator was dumped")
}

fn more_labels(sets: LabelSetStats) -> Option<String> {
    let LabelSetStats { most, others, .. } = sets;
    (others > 0).then(|| {
        format!(
            "{others} samples had other labels than the first {most} sets, and are shown as [other]: choose labels \
             with fewer values, not one that differs in each request"
        )
    })
}

/// Why the profile of memprof's sampler may show too little or too much.
fn faults(sampler: &SamplerStatus) -> impl Iterator<Item = String> + use<> {
    let SamplerStatus {
        samples,
        lost,
        unseen_frees,
        ..
    } = *sampler;
    let lost = (lost > 0).then(|| {
        format!(
            "{lost} of {samples} samples were lost, because memprof's tables were full of stacks whose memory lives, \
             so values are too low: `reset sample_interval=4MiB` samples more coarsely"
        )
    });
    let unseen = (unseen_frees > 0).then(|| {
        format!(
            "{unseen_frees} sampled blocks were given out again though memprof saw no free of them: the program frees \
             by addresses that it keeps in its data, so the profile shows freed memory as live; start the program with \
             `memprof run --allocator jemalloc`, whose own profiler sees every free"
        )
    });
    lost.into_iter().chain(unseen)
}

const READ_BY_MEMPROF: &str = "its stacks contain ages or labels, which other tools would read as addresses: \
     convert it for them with `memprof report --format jeprof`";

/// Less than this was in use unseen before it matters.
const NOTABLE_UNSEEN: u64 = 16 << 20;

/// Whether most of what lives is not in the dumps.
fn unprofiled_warning(dumps: &[Dump], live: u64) -> Option<String> {
    let estimates = dumps.iter().map(|dump| dump.estimated_inuse_bytes);
    let shown = estimates.fold(0, u64::saturating_add);
    let unseen = live.saturating_sub(shown);
    (unseen >= NOTABLE_UNSEEN && unseen > shown).then(|| {
        format!(
            "about {} MiB of {} MiB live bytes are not in it: they were allocated before \
             profiling became active, {SEEN_FROM_THE_START}",
            unseen >> 20,
            live >> 20
        )
    })
}

/// What a reader of these dumps may wonder about.
fn explain(dumps: &[Dump], active_since: Option<SystemTime>, now: SystemTime) -> Vec<String> {
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
