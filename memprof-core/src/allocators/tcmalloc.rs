//! The tcmalloc of gperftools, both the full and the minimal library.

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
use profile::ProfileFunctions;
use rate::RateSetting;
pub(crate) use rate::make_tcmalloc_sample_this_thread;

/// Function that every gperftools exports.
pub(crate) const ANCHOR: &CStr = c"MallocExtension_GetNumericProperty";

/// All symbols to search for.
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

/// Whether a name belongs to a C or C++ function of gperftools: all of them contain the class name `MallocExtension`.
pub(crate) fn is_gperftools_function(name: &[u8]) -> bool {
    memmem::find(name, b"MallocExtension").is_some()
}

/// Default sample interval in bytes. gperftools recommends 512 KiB as cheap.
const DEFAULT_INTERVAL: u64 = 512 << 10;

/// Page size in bytes of Debian's build. A sampled object has a page of its own, because its span stores the stack.
pub(crate) const PAGE: u64 = 8 << 10;

/// Sample interval in bytes below which samples can enlarge the heap by more than a sixteenth.
pub(crate) const FINE_INTERVAL: u64 = 16 * PAGE;

/// A tcmalloc of gperftools in this process.
#[derive(Debug)]
pub(crate) struct Tcmalloc {
    pub identity: AllocatorIdentity,
    extension: Extension,
    profiler: Result<Profiler>,
    /// Most recent sample interval in bytes. Stored because a profile must contain it, but tcmalloc forgets it when
    /// sampling is turned off.
    last_interval: AtomicU64,
}

/// Functions that only the full library has.
#[derive(Debug)]
struct Profiler {
    profiles: ProfileFunctions,
    rate: RateSetting,
}

impl Tcmalloc {
    /// Identifies the tcmalloc with these symbols. `None` if they lack [`ANCHOR`], which every gperftools exports. If
    /// there is no usable profiler, stores the reason instead.
    pub(crate) fn identify(symbols: &ObjectSymbols<'_>) -> Option<Self> {
        let extension = Extension::find(symbols);
        let identity = AllocatorIdentity {
            kind: AllocatorKind::Tcmalloc,
            version: extension
                .version()
                .unwrap_or_else(|| "(no version)".to_owned()),
            found_by: symbols.found_by(),
            owns_malloc: extension.owns_malloc(),
            address: symbols.function_address(ANCHOR)?,
        };
        let profiler = ProfileFunctions::find(symbols, &identity).and_then(|profiles| {
            let rate = RateSetting::find(symbols, &extension, &identity)?;
            Ok(Profiler { profiles, rate })
        });
        let interval = profiler
            .as_ref()
            .map_or(0, |each| each.rate.interval(&extension));
        Some(Self {
            identity,
            extension,
            profiler,
            last_interval: AtomicU64::new(interval),
        })
    }

    /// Returns the profiler's functions.
    ///
    /// # Errors
    /// `Unsupported`, with the reason why this build has no profiler.
    fn require_profiler(&self) -> Result<&Profiler> {
        self.profiler.as_ref().map_err(Clone::clone)
    }

    /// Current sample interval in bytes; while sampling is off, the most recent one; 0 if sampling was never on.
    fn last_known_interval(&self) -> u64 {
        let known = |interval: &u64| *interval > 0;
        let now = self
            .profiler
            .as_ref()
            .map(|each| each.rate.interval(&self.extension));
        let last = self.last_interval.load(Ordering::Relaxed);
        now.ok().filter(known).unwrap_or(last)
    }

    /// Sample interval in bytes to write to profiles; the default if sampling was never on.
    fn interval_for_profiles(&self) -> u64 {
        match self.last_known_interval() {
            0 => DEFAULT_INTERVAL,
            interval => interval,
        }
    }

    /// Reads a numeric property, such as `generic.heap_size`.
    ///
    /// # Errors
    /// `Allocator`: this build lacks the property, or the function that reads properties.
    fn read_property(&self, name: &CStr) -> Result<u64> {
        self.extension.get_property(name).ok_or_else(|| {
            let name = name.to_string_lossy();
            Error::allocator(format!("{} does not report {name}", self.identity))
        })
    }
}

impl Tcmalloc {
    /// Reason why tcmalloc cannot be profiled: the error of the search for its profiler. `None` if it can.
    pub(crate) fn unprofilable_reason(&self) -> Option<Unprofilable> {
        let missing = self.profiler.as_ref().err();
        missing.map(|error| Unprofilable::Incomplete(Box::new(error.clone())))
    }

    /// Whether sampling is on: the sample interval is above 0. False without a profiler.
    pub(crate) fn is_active(&self) -> bool {
        let rate = self
            .profiler
            .as_ref()
            .map(|each| each.rate.interval(&self.extension));
        rate.is_ok_and(|interval| interval > 0)
    }

    /// Mean bytes between samples; while sampling is off, the most recent value. `None` without a profiler, or if
    /// sampling was never on.
    pub(crate) fn sample_interval(&self) -> Option<u64> {
        self.profiler.as_ref().ok()?;
        Some(self.last_known_interval()).filter(|interval| *interval > 0)
    }

    /// Starts sampling at `interval`, or else at the most recent interval, or else at 512 KiB. Returns warnings about
    /// the cost and about older samples.
    ///
    /// # Errors
    /// `Unsupported`: this build has no profiler. `Allocator`: tcmalloc refused.
    pub(crate) fn start_sampling(&self, interval: Option<SampleInterval>) -> Result<Vec<String>> {
        let profiler = self.require_profiler()?;
        let before = self.last_known_interval();
        let interval = match interval {
            Some(interval) => interval.bytes(),
            None if before > 0 => before,
            None => DEFAULT_INTERVAL,
        };
        let was_active = self.is_active();
        profiler
            .rate
            .set_interval(interval, &self.extension, &self.identity)?;
        self.last_interval.store(interval, Ordering::Relaxed);
        let mut warnings = Vec::new();
        if !was_active {
            // A thread that found sampling off checks again only after 16 MiB (`Sampler::PickNextSample`).
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

    /// Stops sampling, and stores the interval for later profiles. Does nothing without a profiler. Fails if tcmalloc
    /// refuses the change, or accepts and ignores it.
    pub(crate) fn stop_sampling(&self) -> Result<()> {
        let Ok(profiler) = &self.profiler else {
            return Ok(());
        };
        self.last_interval
            .store(self.last_known_interval(), Ordering::Relaxed);
        profiler
            .rate
            .set_interval(0, &self.extension, &self.identity)
    }

    /// Always fails, because tcmalloc cannot drop samples.
    ///
    /// # Errors
    /// Always `Unsupported`.
    pub(crate) fn reset_samples(&self) -> Result<()> {
        self.require_profiler()?;
        let message = format!(
            "{} keeps each sample until its memory is freed",
            self.identity
        );
        Err(Error::new(ErrorKind::Unsupported, message).with_remedy(
            "compare two dumps instead: memprof report LATER --base EARLIER; `activate \
             sample_interval=SIZE` sets the interval",
        ))
    }

    /// Estimated memory for a profile in bytes: a C++ string that grows, and its copy in the scratch file. `None` if
    /// this build does not report the heap's size.
    pub(crate) fn profile_memory_estimate(&self, kind: ProfileKind) -> Option<u64> {
        let heap = self.extension.get_property(c"generic.heap_size")?;
        let string = profile::max_string_bytes(kind, heap, self.interval_for_profiles());
        // The string's estimate is three times its final length; the copy has that length.
        Some(string.saturating_add(string / 3))
    }

    /// Writes a heap or growth profile to the temporary file `scratch`, and checks it.
    ///
    /// # Errors
    /// `Unsupported`: this build has no profiler. Otherwise: memory is short, tcmalloc returned no profile or a damaged
    /// one, or the kernel refused.
    pub(crate) fn write_profile(
        &self,
        kind: ProfileKind,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        let profiles = &self.require_profiler()?.profiles;
        // If this property is missing, memory is only checked for the smallest profile.
        let heap = self
            .extension
            .get_property(c"generic.heap_size")
            .unwrap_or(0);
        profiles.write_profile(
            kind,
            heap,
            self.interval_for_profiles(),
            &self.identity,
            scratch,
        )
    }

    /// Heap totals in jemalloc's terms. Memory in caches and central lists counts as active pages, and free memory of
    /// the page heap as free pages. Metadata and thread caches are 0 if this build does not report them.
    ///
    /// # Errors
    /// `Allocator`: this build does not report one of the other sizes.
    pub(crate) fn heap_usage(&self) -> Result<HeapUsage> {
        let heap = self.read_property(c"generic.heap_size")?;
        let free = self.read_property(c"tcmalloc.pageheap_free_bytes")?;
        let unmapped = self.read_property(c"tcmalloc.pageheap_unmapped_bytes")?;
        let physical = self.extension.get_property(c"generic.total_physical_bytes");
        let resident = heap.saturating_sub(unmapped);
        let metadata = physical.map_or(0, |all| all.saturating_sub(resident));
        Ok(HeapUsage::Detailed(HeapTotals {
            allocated: self.read_property(c"generic.current_allocated_bytes")?,
            active: resident.saturating_sub(free),
            metadata,
            resident: resident.saturating_add(metadata),
            mapped: resident,
            retained: unmapped,
            thread_caches: self
                .extension
                .get_property(c"tcmalloc.current_total_thread_cache_bytes")
                .unwrap_or(0),
            lazily_free: 0,
        }))
    }

    /// Output of `MallocExtension_GetStats`.
    ///
    /// # Errors
    /// `Unsupported`: the build lacks the function.
    pub(crate) fn printout(&self) -> Result<Printout> {
        self.extension
            .stats_text()
            .ok_or_else(|| self.missing_symbol_error(extension::STATS))
    }

    /// Releases all free pages of the page heap.
    ///
    /// # Errors
    /// `Unsupported`: the build lacks the function.
    pub(crate) fn purge_free_pages(&self) -> Result<()> {
        let released = self.extension.release_free_memory();
        released.ok_or_else(|| self.missing_symbol_error(extension::RELEASE))
    }

    /// Names of the C functions that the build lacks.
    pub(crate) fn missing_symbols(&self) -> &[&'static str] {
        &self.extension.missing
    }
}

impl Tcmalloc {
    /// `Unsupported` error for the C function `name`, which this build lacks.
    fn missing_symbol_error(&self, name: &CStr) -> Error {
        let name = name.to_string_lossy();
        let message = format!("{} lacks {name}", self.identity);
        Error::new(ErrorKind::Unsupported, message)
            .with_remedy("its library is incomplete or too old: use gperftools 2.0 or newer")
    }
}
