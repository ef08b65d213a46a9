//! The contract with people and programs: which messages `memory_profile` answers and what their
//! arguments are. Plain data: nothing here runs.
//!
//! The plugin's descriptors and its `help`, the program's commands, their `--help` and completion,
//! the HTTP API and its description are made from [`MESSAGES`]. To send messages see
//! `memprof-host`; to write a plugin see `memprof-plugin-abi`.

mod argument;
mod message;
mod table;
mod usage;

pub use argument::{Argument, Values};
pub use message::{Effect, Message, message};
pub use table::{MESSAGES, PLUGIN};
pub use usage::USAGES;
