//! Finds leaked objects of a running process, and what holds the other ones, from outside: nothing is loaded
//! into the process.
//!
//! Stopping threads and reading their registers is the work of memprof-ptrace; reading profiles that of
//! memprof-report.

mod address_filter;
mod address_ranges;
mod analysis;
mod budget;
mod c_library;
mod census;
mod disguised_pointers;
mod error;
mod fontconfig_pointers;
mod groups;
mod heap;
mod holders;
mod leak_group;
mod mapped_parts;
mod mark;
mod names;
mod objects;
mod prove;
mod python;
mod python_garbage;
mod regions;
mod residency;
mod resident_pages;
mod roots;
mod sampled_origin;
mod saved_contexts;
mod shared_object;
pub mod snapshot;
mod snapshot_memory;
mod stacks;
mod unsearched;
mod words;
mod xor_lists;

pub use analysis::{AnalysisOptions, AnalysisReport, OnPhase, Phase};
pub use census::{Census, TypeTotals, take_census};
pub use error::Error;
pub use holders::{
    Detail, GroupKind, HeapObjectKind, HeldSamples, Holder, HolderGroup, HolderPath, Holding,
    Method, ObjectTotals, SampledGroup, find_process_holders,
};
pub use leak_group::{LeakGroup, OriginShare, SampledOrigin};
pub use mapped_parts::{MappedPart, MappedPartKind, find_mapped_parts};
pub use memprof_ptrace::exit_stop;
pub use prove::{Proof, prove_leaks, prove_leaks_at_exit};
pub use residency::{HeapResidency, measure_heap_residency};
pub use snapshot::{SearchEnd, reap_copies};
pub use unsearched::{Unsearched, UnsearchedAmount, UnsearchedRole};
