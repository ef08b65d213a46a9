//! Reads heap profiles and reports on them. Parses dumps of jemalloc and tcmalloc and pprof profiles, undoes the
//! sampling, symbolizes addresses, compares and renders. To take a dump, see `memprof-core`; for a program that
//! reports from the command line, `memprof-cli`.
//!
//! Input are bytes, the directories of binaries and a writer; the crate opens no file of the profiled process
//! except through [`Sources`]. Dumps are treated as hostile input: see [`Limits`] and [`Error`].
//!
//! ```
//! use memprof_report::{Input, Options, write_report};
//!
//! let dump = "heap_v2/524288\n  t*: 1: 4096 [0: 0]\n@ 0x401136 0x401152\n  t*: 1: 4096 [0: 0]\n\n\
//!             MAPPED_LIBRARIES:\n00401000-00402000 r-xp 00001000 00:00 0 /usr/bin/shop\n";
//! let mut bytes = dump.as_bytes();
//! let input = Input { name: "shop.heap", bytes: &mut bytes };
//! let mut table = Vec::new();
//! // Without sources of symbols, functions are shown as offsets.
//! let notes = write_report(input, None, &[], &Options::default(), &|_, _| {}, &mut table)?;
//! notes.iter().for_each(|note| eprintln!("{note}"));
//! // The call instruction precedes the return address of a frame.
//! assert!(String::from_utf8_lossy(&table).contains("shop+0x1135"));
//! # Ok::<(), memprof_report::Error>(())
//! ```

mod options;
mod plural;
mod report;

mod file_magic;
mod heap;
mod input;
mod lines;
mod pprof;

mod address;
mod comparison;
mod main_program;
mod names;
mod profile;
mod program_link;
mod stacks;

mod unsample;
mod unseen_calls;

mod allocator_frames;
mod call_shape;
mod calling_place;
mod demangle;
mod early_ends;
mod symbolize;

mod ages;
mod alloc_time;
mod closures;
mod code_origin;
mod confidence;
mod filter;
mod fold;
mod interpreter;
mod label;
mod label_shares;
mod managed;
mod managed_frames;
mod module_names;
mod overloads;
mod pseudo_frames;
mod short_names;
mod steady_growth;
mod symbolize_stacks;
mod symbolized_profile;
mod table;
mod tree;
mod unloaded_code;

mod render;

mod error;
mod limits;

pub use code_origin::{CodeOrigin, CodeOrigins, OriginRules};
pub use comparison::Comparison;
pub use confidence::Confidence;
pub use demangle::demangle;
pub use error::{Error, ErrorKind, Result};
pub use filter::{Filter, compile_pattern, drop_memprof_stacks};
pub use fold::{Folded, FoldedStack, FoldedStacks, Granularity, StackCursor};
pub use heap::{export_dump, write_tcmalloc};
pub use input::parse_profile;
pub use label::Label;
pub use label_shares::{LabelUsage, usage_by_label};
pub use limits::Limits;
pub use managed::StackFrames;
pub use names::{Frame, Names, StringId, Strings};
pub use options::{Format, Options};
pub use profile::{
    Address, AllocationTally, EarlyEnds, FileOffset, Mapping, Profile, ProfileOrigin,
    ProfiledProcess, Sample, SampleType, SampleValues, UnseenFrees,
};
pub use program_link::{ProgramLink, program_link};
pub use render::{
    Cells, Column, FLAMEGRAPH_POLICY, Outline, OutlinePage, POLICY, RenderInput, VIEWER,
    format_amount, render,
};
pub use report::{Input, join_notes, read_profile, write_report};
pub use stacks::{AddressId, StackId, Stacks};
pub use steady_growth::{SteadyStack, SteadyStacks, find_steady_growth};
pub use symbolize::{LimitedFile, Progress, Sources, symbolize};
pub use symbolize_stacks::{NamedStack, symbolize_stacks};
pub use symbolized_profile::SymbolizedProfile;
pub use table::{Row, function_rows};
pub use unsample::unsample;
