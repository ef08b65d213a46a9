//! Loads the plugin into a process that nobody prepared, and leaves the process as it was.
//!
//! A thread that waits in a system call is borrowed twice for less than a millisecond, to map two pages
//! and to make a thread; that one loads the plugin, while nobody is stopped. This program may be
//! killed at any moment: see [`memprof_ptrace::remote_call`]. A Java virtual machine is asked to load it
//! instead, without a stop, and so is a Node, where that is [wanted](attach_by_node_inspector).
//!
//! To talk to a process that holds the plugin already, use memprof-host's client.

mod address_gap;
mod attachment;
mod call_stack;
mod error;
mod fork;
mod inject;
mod injected_code;
mod jvm;
mod node;
mod outcome;
mod patched_functions;
mod plugin;
mod room;
mod run_calls;
mod running_thread;
mod safe_point;
mod shared_page;
mod target;
mod target_root;
mod thread_limit;

pub use attachment::{Attachment, ConfigFile};
pub use error::{Error, InspectorError};
pub use inject::attach;
pub use node::{attach_by_node_inspector, remedy};
pub use outcome::{AttachOutcome, InspectorPort};
pub use patched_functions::{
    PatchReport, patch_entry_points, require_symbols, restore_entry_points,
};
pub use plugin::Plugin;
