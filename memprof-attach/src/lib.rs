//! Loads the plugin into a process that nobody prepared, and leaves the process as it was.
//!
//! A thread that waits in a system call is borrowed twice for less than a millisecond, to map two pages
//! and to make a thread; that one loads the plugin, while nobody is stopped. This program may be
//! killed at any moment: see [`memprof_ptrace::errand`]. A Java virtual machine is asked to load it
//! instead, without a stop. To talk to a process that holds the plugin
//! already, use memprof-host's client.

mod attachment;
mod code;
mod error;
mod hole;
mod inject;
mod jvm;
mod page;
mod plugin;
mod root;
mod safe_point;
mod target;

pub use attachment::{Attachment, File};
pub use error::Error;
pub use inject::{Attached, attach};
pub use plugin::Plugin;
