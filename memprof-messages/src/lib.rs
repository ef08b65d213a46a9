//! The contract with people and programs: which messages `memory_profile` answers, what their
//! arguments are, and what it replies. Plain data: nothing here runs.
//!
//! The plugin's descriptors and its `help`, the program's commands, their `--help` and completion,
//! the HTTP API and its description are made from [`MESSAGES`]. To send messages see
//! `memprof-host`; to write a plugin see `memprof-plugin-abi`.

mod argument;
mod doctor;
mod dump;
mod dump_id;
mod ledger;
mod message;
mod names;
mod reply;
#[cfg(feature = "schema")]
mod schema;
mod size;
mod stats;
mod status;
mod table;
mod usage;
mod words;

pub use argument::{Argument, Values};
pub use doctor::{Finding, Findings, Severity};
pub use dump::{Dump, DumpReport, Kept, KeptDumps};
pub use dump_id::DumpId;
pub use ledger::{Cgroup, Heap, Ledger, Part, Row, Sampled, Smaps, Verdict, VerdictKind};
pub use memprof_plugin_abi::ErrorKind;
pub use message::{Effect, Message, Pace};
pub use names::{
    Kind, ProfileKind, Profiling, SamplerChoice, Switch, Through, TriggerWord, UnwinderChoice,
    Whose,
};
pub use reply::{Answer, Help, HelpOfMessage, Nothing, Refusal, Refused, Reply, ReplyType};
pub use size::{SIZE_EXAMPLE, has_unit, parse_size, written_size};
pub use stats::{Background, Figures, OfAllocators, Purged, Recent, Stats, Totals};
pub use status::{
    Activation, AllocatorStatus, GdumpStatus, Gdumping, JemallocOptions, LabelSets, SamplerStatus,
    Slots, Status, UnwinderStatus, Walker, WatchStatus, release,
};
pub use table::{MESSAGES, PLUGIN, message};
pub use usage::USAGES;
pub use words::{UnknownWord, Vocabulary, Word};
