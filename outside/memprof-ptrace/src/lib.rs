//! Another process, seen and controlled from outside: what /proc says about it, whether it may be traced, its
//! threads, its memory, and remote calls in it.
//!
//! memprof-attach uses this crate to load the plugin, memprof-leaks to take snapshots. To send messages to a process
//! that has loaded the plugin already, use memprof-host's client.

mod auxiliary;
mod clone_step;
pub mod control_block;
mod examine;
pub mod executable;
pub mod exit_stop;
mod fork_trial;
pub mod frame_memory;
mod freezer;
mod halt;
pub mod kernel_queue;
pub mod library_image;
mod limit;
pub mod mapped_file;
pub mod maps;
pub mod memory;
pub mod page_fault_server;
pub mod pidfd;
mod proc_dir;
pub mod process;
pub mod process_copy;
mod process_list;
mod program_watch;
mod ptrace_request;
mod reader;
mod reader_server;
mod refusal;
pub mod remote_call;
pub mod sanitizer;
pub mod seccomp;
pub mod stop;
pub mod stop_all;
mod stuck_reader;
pub mod syscall_restart;
pub mod threads;
mod tracer;
pub mod xstate;

pub use examine::{
    ExaminedProcess, Purpose, examine_process_for, examine_process_for_load, proc_denied_refusal,
};
pub use fork_trial::measure_page_copy_time;
pub use halt::{Halt, HaltWatch};
pub use limit::Limit;
pub use proc_dir::read_proc_text;
pub use process_list::{ListResult, ListedProcess, ProcessLister};
pub use program_watch::{ProgramEnd, ProgramWatch};
pub use refusal::{Denial, Refusal};
