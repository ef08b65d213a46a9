//! What nothing points to in a running process, seen from outside: nothing is loaded into it.
//!
//! memprof-ptrace knows threads and registers; memprof-report reads profiles.

mod error;
mod heap;
mod objects;
mod pages;
mod prove;
mod reach;
mod roots;
pub mod snapshot;
mod view;

pub use error::Error;
pub use prove::{Group, Options, Proof, Step, prove};
