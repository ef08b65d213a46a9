//! Loads the plugin into a running process that was not started for memprof. If that fails, the process is as
//! before.
//!
//! A thread that waits in a system call is stopped twice for less than a millisecond, to map two pages and to create
//! a thread. The new thread loads the plugin, while no other thread is stopped. This program may be killed at any
//! moment: see [`memprof_ptrace::remote_call`]. A Java virtual machine is requested to load the plugin instead,
//! without a stop, and so is Node.js through its inspector, [if the user wants it](attach_by_node_inspector).
//!
//! To send messages to a process that has loaded the plugin already, use memprof-host's client.

mod address_gap;
mod attachment;
mod call_stack;
mod error;
mod fork;
mod inject;
mod injected_code;
mod jvm;
mod load_outcome;
mod maps_text;
mod memory_file;
mod node;
mod outcome;
mod patched_functions;
mod plugin;
mod room;
mod run_calls;
mod running_thread;
mod safe_point;
mod shared_page;
mod stack_scan;
mod step_deadline;
mod target;
mod target_root;
mod thread_limit;

pub use attachment::{Attachment, ConfigFile};
pub use error::{AttachError, InspectorError, LEFT_MAPPED};
pub use inject::attach;
pub use node::{attach_by_node_inspector, refusal_remedy};
pub use outcome::{AttachOutcome, InspectorPort};
pub use patched_functions::{
    MallocOwner, PatchReport, patch_entry_points, patch_other_allocators,
    require_allocator_symbols, restore_entry_points,
};
pub use plugin::Plugin;
