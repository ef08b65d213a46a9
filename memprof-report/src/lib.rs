//! The reader: heap profiles to answers. It parses dumps of jemalloc and tcmalloc and pprof profiles,
//! undoes the sampling, names addresses, compares and renders. To take a dump, look at `memprof-core`;
//! for a program that does this from the command line, at `memprof-cli`.
//!
//! Bytes, the places of binaries and a writer come in, a report goes out; nothing is read of the
//! process that was profiled. Every dump is hostile: see [`Limits`] and [`Error`].

mod options;
mod report;

mod heap;
mod input;
mod lines;
mod pprof;

mod address;
mod names;
mod pair;
mod profile;
mod stacks;

mod unsample;

mod demangle;
mod symbolize;
mod trim;

mod ages;
mod birth;
mod blame;
mod callers;
mod evidence;
mod filter;
mod fold;
mod interpreter;
mod label;
mod levels;
mod marks;
mod shares;
mod short;
mod table;
mod tree;

mod render;

mod error;
mod limits;

pub use ages::Cohort;
pub use birth::{Ages, Birth};
pub use blame::{Blame, Whose};
pub use callers::callers;
pub use demangle::demangle;
pub use error::{Error, ErrorKind, Result};
pub use evidence::Evidence;
pub use filter::{Filter, leave_out_memprof, pattern};
pub use fold::{Folded, FoldedStack, Granularity, Named};
pub use heap::write_tcmalloc;
pub use input::parse;
pub use label::{Label, LabelId, Labels};
pub use levels::{Level, Levels, levels};
pub use limits::Limits;
pub use names::{Detail, Frame, Names, StringId, Strings};
pub use options::{Format, Options};
pub use pair::{Change, Pair};
pub use profile::{
    Address, Claims, FileOffset, Mapping, Origin, Profile, Sample, SampleType, Sampling, Tally,
    Values,
};
pub use render::{FLAMEGRAPH_POLICY, POLICY, Subject, VIEWER, amount, render};
pub use report::{Input, read, report};
pub use stacks::{AddressId, StackId, Stacks};
pub use symbolize::{Progress, Sources, symbolize};
pub use table::{Row, table};
pub use unsample::unsample;
