//! The heap profiler inside the process: finds the host's allocators, drives them, dumps safely
//! and keeps the dumps.
//!
//! It runs in somebody's production process, so it opens no socket, reads no symbols for names,
//! links no allocator and starts one sleeping thread. To load it into a program see the plugin
//! `memory_profile`; to read the dumps see `memprof-report`.

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("memprof runs on 64-bit Linux with glibc");

mod backend;
mod background;
mod cgroup;
mod discover;
mod doctor;
mod dump;
mod dump_name;
mod dumper;
mod embedded;
mod error;
#[cfg(test)]
mod fake;
mod farewell;
mod gdump;
mod glibc;
mod headroom;
mod heap;
mod hidden;
mod interval;
mod jemalloc;
mod lease;
mod leash;
mod ledger;
mod legacy;
mod mallctl;
mod mimalloc;
mod objects;
mod printout;
mod profiler;
mod publish;
mod reading;
mod recent;
mod retention;
mod sampler;
mod scratch;
mod seccomp;
mod size;
mod smaps;
mod stats;
mod status;
mod store;
mod symbols;
mod tcmalloc;
mod trigger;
mod unsampled;
mod unwinder;
mod watch;
mod watcher;

pub use backend::{Kind, ProfileKind};
pub use background::Background;
pub use cgroup::Cgroup;
pub use discover::FoundBy;
pub use doctor::{Finding, Severity};
pub use dump::Dump;
pub use error::{Error, ErrorKind, Result};
pub use gdump::{GdumpLimits, GdumpStatus};
pub use interval::SampleInterval;
pub use jemalloc::{Sampled, is_secure_execution};
pub use ledger::{Heap, Ledger, Row, Verdict};
pub use mallctl::{Mallctl, MallctlFn, StatsCallback, StatsPrintFn, Value};
pub use printout::{PrintOptions, Printout};
pub use profiler::{ActivateOptions, Profiler, SEEN_FROM_THE_START, Settings};
pub use recent::{RECENT, Recent};
pub use retention::Keep;
pub use sampler::{SamplerChoice, SamplerStatus, Slots};
pub use seccomp::require_calls;
pub use size::{SIZE_EXAMPLE, has_unit, parse_size};
pub use smaps::Smaps;
pub use stats::{Figures, ReadFigures, ReadReport, Readers, Stats, Totals};
pub use status::{Activation, Allocator, DumpReport, Gdumping, JemallocOptions, Purged, Status};
pub use store::{Fetched, Kept, Store, default_dump_dir};
pub use trigger::Trigger;
pub use unsampled::Unsampled;
pub use unwinder::{UnwinderChoice, UnwinderSettings, UnwinderStatus, Walker};
pub use watch::{Condition, Rule, Threshold};
pub use watcher::WatchStatus;
