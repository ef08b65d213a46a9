//! Another process from outside: what it is, whether it may be touched, its threads, and calls in it.
//!
//! memprof-attach loads the plugin through it, memprof-leaks takes snapshots. To talk to a process that holds the plugin already, use
//! memprof-host's client.

mod auxiliary;
pub mod control_block;
mod examine;
pub mod executable;
pub mod exit_stop;
pub mod frame_memory;
mod freezer;
mod given_up;
mod halt;
pub mod library_image;
mod limit;
pub mod mapped_file;
pub mod maps;
pub mod memory;
pub mod pidfd;
mod proc_dir;
pub mod process;
pub mod process_copy;
mod process_list;
mod ptrace_request;
mod reader;
mod refusal;
pub mod remote_call;
pub mod sanitizer;
pub mod seccomp;
pub mod stop;
pub mod stop_all;
pub mod syscall_restart;
pub mod threads;
mod tracer;
pub mod xstate;

pub use examine::{ExaminedProcess, Purpose, denied_to_read, examine, examine_for};
pub use halt::{Halt, HaltWatch};
pub use limit::Limit;
pub use process_list::{ListedProcess, ProcessList, list_processes};
pub use refusal::{Denial, Refusal};
