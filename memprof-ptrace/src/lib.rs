//! Another process from outside: what it is, whether it may be touched, its threads, and calls in it.
//!
//! memprof-attach loads the plugin through it, memprof-leaks takes snapshots. To talk to a process that holds the plugin already, use
//! memprof-host's client.

mod auxiliary;
mod caller;
pub mod control_block;
mod directory;
pub mod ending;
pub mod errand;
mod examine;
mod freezer;
mod given_up;
mod halt;
pub mod image;
mod limit;
pub mod mapped_file;
pub mod maps;
pub mod memory;
pub mod pidfd;
pub mod place;
pub mod process;
pub mod program;
mod reader;
mod refusal;
pub mod restart;
pub mod sanitizer;
pub mod seccomp;
pub mod standstill;
pub mod state;
pub mod stop;
mod survey;
pub mod threads;
mod trace;
pub mod twin;

pub use examine::{Examined, Purpose, denied_to_read, examine, examine_for};
pub use halt::{Halt, HaltWatch};
pub use limit::Limit;
pub use refusal::{Denial, Refusal};
pub use survey::{Survey, Surveyed, survey};
