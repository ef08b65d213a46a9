//! What nothing points to in a running process, and what holds the rest, seen from outside: nothing is loaded
//! into it.
//!
//! memprof-ptrace knows threads and registers; memprof-report reads profiles.

mod budget;
mod error;
mod garbage;
mod groups;
mod heap;
mod holders;
mod look;
mod names;
mod objects;
mod pages;
mod prove;
mod reach;
mod regions;
mod roots;
pub mod snapshot;
mod stacks;
mod units;
mod view;

pub use error::Error;
pub use groups::Group;
pub use holders::{
    Chain, Detail, Holder, Holding, Kind, Level, Link, Method, Samples, Sampling, Sum, holders,
};
pub use look::{Looks, Options, Progress, Step};
pub use memprof_ptrace::ending;
pub use prove::{Proof, prove, prove_ending};
pub use snapshot::{SearchEnd, reap_copies};
