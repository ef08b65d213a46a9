//! The heap profiler inside the host process: finds the allocators, samples their allocations, takes dumps
//! without stopping the host, and stores the dumps.
//!
//! It runs in production processes. Therefore it opens no socket, resolves no addresses to function names, links no
//! allocator, and starts only few threads, which sleep most of the time. To load it into a program, see the plugin
//! `memory_profile`; to read dumps, see `memprof-report`.

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("memprof runs on 64-bit Linux with glibc");

// Each module uses only modules above it.

mod error;

mod lock;

mod identity;

mod system;

mod dumps;

mod allocators;

mod unwinder;

mod sampler;

mod accounting;

mod watching;

mod doctor;

mod profiler;

pub use accounting::recent_allocations::RECENT_RANGE;
pub use allocators::interval::SampleInterval;
pub use allocators::mallctl::{Mallctl, MallctlFn, StatsCallback, StatsPrintFn, Value};
pub use allocators::printout::{JemallocReaders, PrintOptions, Printout, ReadPrintout, ReadTotals};
pub use allocators::profiler_exclusion::ProfilerExclusion;
pub use allocators::unprofilable::is_secure_execution;
pub use dumps::retention::RetentionPolicy;
pub use dumps::store::{OpenedDump, Store, default_dump_dir};
pub use dumps::trigger::{Condition, Threshold, Trigger};
pub use error::{Cause, Error, ErrorKind, Result};
pub use identity::FoundBy;
pub use profiler::{
    ActivateOptions, AgeBucketWidth, LabelKeys, Profiler, ProfilerSettings, START_ACTIVE_HINT,
};
pub use sampler::{StartScope, sample_from_start};
pub use system::seccomp::require_seccomp_allows_calls;
pub use unwinder::UnwinderSettings;
pub use watching::high_water_watch::GdumpLimits;
pub use watching::rule::WatchRule;
