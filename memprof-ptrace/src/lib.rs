//! Another process from outside: what it is, whether it may be touched, its threads, and calls in it.
//!
//! memprof-attach loads the plugin through it. To talk to a process that holds the plugin already, use
//! memprof-host's client.

mod caller;
mod directory;
mod examine;
mod freezer;
pub mod maps;
pub mod process;
pub mod program;
mod refusal;
pub mod seccomp;
mod survey;

pub use examine::{Examined, examine};
pub use refusal::{Denial, Refusal};
pub use survey::{Survey, Surveyed, survey};
