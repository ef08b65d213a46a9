//! Loads the plugin into a process that nobody prepared, and leaves the process as it was.
//!
//! A thread that waits in a system call is borrowed twice for less than a millisecond, to map two pages
//! and to make a thread; that one loads the plugin, while nobody is stopped. This program may be
//! killed at any moment: see [`memprof_ptrace::errand`]. A Java virtual machine is asked to load it
//! instead, without a stop, and so is a Node, where that is [wanted](attach_by_node_inspector).
//!
//! To talk to a process that holds the plugin already, use memprof-host's client.

mod attached;
mod attachment;
mod call_stack;
mod code;
mod entries;
mod error;
mod fork;
mod hole;
mod inject;
mod jvm;
mod node;
mod page;
mod plugin;
mod room;
mod root;
mod running;
mod safe_point;
mod sent;
mod target;
mod thread_limit;

pub use attached::{Attached, Port};
pub use attachment::{Attachment, File};
pub use entries::{Led, lead_entries, require_symbols, restore_entries};
pub use error::{Error, NoInspector};
pub use inject::attach;
pub use node::{attach_by_node_inspector, remedy};
pub use plugin::Plugin;
