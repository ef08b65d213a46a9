//! gperftools' tcmalloc, the full one and the minimal one.

mod cxx_string;
mod extension;
mod profile;
mod rate;

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;

use crate::allocators::interval::SampleInterval;
use crate::allocators::printout::Printout;
use crate::allocators::symbols::ObjectSymbols;
use crate::allocators::unprofilable::Unprofilable;
use crate::dumps::heap::ProfileSummary;
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use extension::Extension;
use memprof_messages::{AllocatorKind, HeapTotals, HeapUsage, ProfileKind};
use profile::Profiles;
use rate::Rate;

/// What every gperftools names.
pub(crate) const ANCHOR: &CStr = c"MallocExtension_GetNumericProperty";

/// What is looked up by name.
pub(crate) const NAMES: &[&CStr] = &[
    ANCHOR,
    extension::SET,
    extension::STATS,
    extension::OWNERSHIP,
    extension::RELEASE,
    extension::VERSION,
    profile::HEAP_PROFILER,
    profile::INSTANCE,
    profile::HEAP_SAMPLE,
    profile::GROWTH_STACKS,
    rate::FLAG,
];

/// Whether a function is one of gperftools' own that it calls by name, in C or C++.
pub(crate) fn is_own_name(name: &[u8]) -> bool {
    memmem::find(name, b"MallocExtension").is_some()
}

/// gperftools' advice: cheap, and a sample for each 512 KiB.
const DEFAULT_INTERVAL: u64 = 512 << 10;

/// Of Debian's build. Each sampled object takes one alone: a span tells its stack.
const PAGE: u64 = 8 << 10;

/// Below it, samples make the heap grow by more than a sixteenth.
pub(crate) const FINE_INTERVAL: u64 = 16 * PAGE;

/// A gperftools in this process.
#[derive(Debug)]
pub(crate) struct Tcmalloc {
    pub identity: AllocatorIdentity,
    extension: Extension,
    profiler: Result<Profiler>,
    /// What it sampled at last: tcmalloc forgets it when it is switched off, and a profile must
    /// tell it.
    last_interval: AtomicU64,
}

/// What only the full library has.
#[derive(Debug)]
struct Profiler {
    profiles: Profiles,
    rate: Rate,
}

impl Tcmalloc {
    pub(crate) fn identify(symbols: &ObjectSymbols<'_>) -> Option<Self> {
        let extension = Extension::find(symbols);
        let identity = AllocatorIdentity {
            kind: AllocatorKind::Tcmalloc,
            version: extension
                .version()
                .unwrap_or_else(|| "(no version)".to_owned()),
            found_by: symbols.found_by(),
            owns_malloc: extension.owns_malloc(),
            address: symbols.function(ANCHOR)?,
        };
        let profiler = Profiles::find(symbols, &identity).and_then(|profiles| {
            let rate = Rate::find(symbols, &extension, &identity)?;
            Ok(Profiler { profiles, rate })
        });
        let interval = profiler
            .as_ref()
            .map_or(0, |each| each.rate.get(&extension));
        Some(Self {
            identity,
            extension,
            profiler,
            last_interval: AtomicU64::new(interval),
        })
    }

    fn profiler(&self) -> Result<&Profiler> {
        self.profiler.as_ref().map_err(Clone::clone)
    }

    /// What it samples at, or did last.
    fn interval(&self) -> u64 {
        let known = |interval: &u64| *interval > 0;
        let now = self
            .profiler
            .as_ref()
            .map(|each| each.rate.get(&self.extension));
        let last = self.last_interval.load(Ordering::Relaxed);
        now.ok().filter(known).unwrap_or(last)
    }

    /// The interval that profiles tell.
    fn reported_interval(&self) -> u64 {
        match self.interval() {
            0 => DEFAULT_INTERVAL,
            interval => interval,
        }
    }

    fn property(&self, name: &CStr) -> Result<u64> {
        self.extension.get(name).ok_or_else(|| {
            let name = name.to_string_lossy();
            Error::allocator(format!("{} does not report {name}", self.identity))
        })
    }
}

impl Tcmalloc {
    /// Why it cannot be profiled, where it cannot.
    pub(crate) fn why_not(&self) -> Option<Unprofilable> {
        let missing = self.profiler.as_ref().err();
        missing.map(|error| Unprofilable::Incomplete(Box::new(error.clone())))
    }

    pub(crate) fn is_active(&self) -> bool {
        let rate = self
            .profiler
            .as_ref()
            .map(|each| each.rate.get(&self.extension));
        rate.is_ok_and(|interval| interval > 0)
    }

    pub(crate) fn sample_interval(&self) -> Option<u64> {
        self.profiler.as_ref().ok()?;
        Some(self.interval()).filter(|interval| *interval > 0)
    }

    pub(crate) fn activate(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        let profiler = self.profiler()?;
        let before = self.interval();
        let interval = match interval {
            Some(interval) => interval.bytes(),
            None if before > 0 => before,
            None => DEFAULT_INTERVAL,
        };
        let was_active = self.is_active();
        profiler
            .rate
            .set(interval, &self.extension, &self.identity)?;
        self.last_interval.store(interval, Ordering::Relaxed);
        let mut warnings = Vec::new();
        if !was_active {
            // Sampler::PickNextSample of a thread that found sampling off.
            warnings.push(format!(
                "each thread of {} starts to sample within its next 16 MiB of allocations",
                self.identity
            ));
        }
        if interval < FINE_INTERVAL {
            warnings.push(format!(
                "{} gives each sampled object a page of its own (8 KiB): up to {} % more memory",
                self.identity,
                PAGE * 100 / interval
            ));
        }
        if before > 0 && before != interval {
            warnings.push(format!(
                "{} keeps the samples of one per {before} bytes; profiles will count them as one \
                 per {interval}",
                self.identity
            ));
        }
        Ok(warnings)
    }

    pub(crate) fn deactivate(&self) -> Result<()> {
        let Ok(profiler) = &self.profiler else {
            return Ok(());
        };
        self.last_interval.store(self.interval(), Ordering::Relaxed);
        profiler.rate.set(0, &self.extension, &self.identity)
    }

    pub(crate) fn reset(&self) -> Result<()> {
        self.profiler()?;
        let message = format!(
            "{} keeps each sample until its memory is freed",
            self.identity
        );
        Err(Error::new(ErrorKind::Unsupported, message).remedy(
            "compare two dumps instead: memprof report LATER --base EARLIER; `activate \
             sample_interval=SIZE` sets the interval",
        ))
    }

    /// A string, and its copy in the scratch.
    pub(crate) fn profile_bytes(&self, kind: ProfileKind) -> Option<u64> {
        let heap = self.extension.get(c"generic.heap_size")?;
        let string = profile::string_bytes(kind, heap, self.reported_interval());
        Some(string.saturating_add(string / 3))
    }

    pub(crate) fn write_profile(
        &self,
        kind: ProfileKind,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        let profiles = &self.profiler()?.profiles;
        // Without the figure, memory for the smallest profile is asked for.
        let heap = self.extension.get(c"generic.heap_size").unwrap_or(0);
        profiles.write(
            kind,
            heap,
            self.reported_interval(),
            &self.identity,
            scratch,
        )
    }

    /// In jemalloc's words: what the caches and the central lists hold lies in pages that are in
    /// use, what the page heap holds is free pages.
    pub(crate) fn totals(&self) -> Result<HeapUsage> {
        let heap = self.property(c"generic.heap_size")?;
        let free = self.property(c"tcmalloc.pageheap_free_bytes")?;
        let unmapped = self.property(c"tcmalloc.pageheap_unmapped_bytes")?;
        let physical = self.extension.get(c"generic.total_physical_bytes");
        let resident = heap.saturating_sub(unmapped);
        let metadata = physical.map_or(0, |all| all.saturating_sub(resident));
        Ok(HeapUsage::Detailed(HeapTotals {
            allocated: self.property(c"generic.current_allocated_bytes")?,
            active: resident.saturating_sub(free),
            metadata,
            resident: resident.saturating_add(metadata),
            mapped: resident,
            retained: unmapped,
        }))
    }

    pub(crate) fn report(&self) -> Result<Printout> {
        self.extension
            .report()
            .ok_or_else(|| self.missing_symbol_error(extension::STATS))
    }

    pub(crate) fn purge(&self) -> Result<()> {
        let released = self.extension.release();
        released.ok_or_else(|| self.missing_symbol_error(extension::RELEASE))
    }

    pub(crate) fn missing(&self) -> &[&'static str] {
        &self.extension.missing
    }
}

impl Tcmalloc {
    fn missing_symbol_error(&self, name: &CStr) -> Error {
        let name = name.to_string_lossy();
        let message = format!("{} lacks {name}", self.identity);
        Error::new(ErrorKind::Unsupported, message)
            .remedy("its library is incomplete or too old: use gperftools 2.0 or newer")
    }
}
