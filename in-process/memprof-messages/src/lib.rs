//! The interface of the plugin `memory_profile` for people and programs: its messages, their arguments and their
//! replies. This crate contains only data.
//!
//! [`MESSAGES`] is the source of the plugin's descriptors and its `help`, of the program's commands with their `--help`
//! and completion, and of the HTTP API with its description. To send messages, see `memprof-host`; to write a plugin,
//! see `memprof-plugin-abi`.

mod argument;
mod doctor;
mod dump;
mod dump_id;
mod enums;
mod errno_remedy;
mod ledger;
mod ledger_text;
mod message;
mod open_enum;
mod reply;
mod runtime_heap;
#[cfg(feature = "schema")]
mod schema;
mod size;
mod stats;
mod status;
mod table;
mod usage;

pub use argument::{ArgumentSpec, ArgumentType};
pub use doctor::{DoctorReport, Finding, Severity, findings_text};
pub use dump::{Dump, DumpList, DumpReport, EarlyEnds, KeptDump, UnseenFrees};
pub use dump_id::DumpId;
pub use enums::{
    AllocatorKind, EarlyEndReason, InterceptionKind, LanguagesChoice, OnOff, ProfileKind,
    Profiling, Provider, SamplerChoice, TriggerKind, UnwinderChoice,
};
pub use errno_remedy::{Operation, errno_remedy};
pub use ledger::{
    AllocatorHeap, Cgroup, HeapWalk, Ledger, LedgerFinding, LedgerFindingKind, LedgerPart,
    LedgerRow, MemoryPart, MemoryPartKind, SampledObjects, Smaps,
};
pub use ledger_text::{PurgeEstimate, ledger_text, purged_text, size_text};
pub use memprof_plugin_abi::ErrorKind;
pub use message::{Effect, MessageSpec, ReplyLatency};
pub use open_enum::{NamedEnum, OpenEnum, UnknownName};
pub use reply::{
    EmptyReply, ErrorBody, ErrorReply, HelpReply, MessageHelp, ReplyEnvelope, ReplyStatus,
    ReplyType,
};
pub use runtime_heap::{RuntimeHeap, RuntimeSigns, find_runtime_heaps};
pub use size::{SIZE_EXAMPLE, format_size, has_unit, parse_size};
pub use stats::{
    BackgroundThreads, HeapTotals, HeapUsage, PerAllocator, PurgeResult, RecentAllocations, Stats,
};
pub use status::{
    ActivationResult, AllocatorStatus, GdumpResult, GdumpStatus, JemallocOptions, LabelSetStats,
    LanguageStatus, ProfilerStatus, SamplerStatus, SlotCounts, UnwinderStatus, WalkerStatus,
    WatchStatus, release_version,
};
pub use table::{MESSAGES, PLUGIN, find_message};
pub use usage::USAGES;
