//! Outcome of an attachment.

use std::net::SocketAddr;
use std::time::Duration;

/// Way in which the plugin was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachOutcome {
    /// By a new thread, which stopped threads of the process created.
    ByThread {
        /// Duration of each stop of a thread.
        stops: Vec<Duration>,
        /// Thread that was stopped last.
        thread: u32,
        /// Thread limit (`RLIMIT_NPROC`) before and after it was raised; the plugin restores it when it is unloaded.
        /// `None` if it was not raised.
        thread_limit: Option<(u64, u64)>,
        /// Signals whose handlers might fork. From now on that can deadlock, because the process no longer has a single
        /// thread.
        handled: Vec<String>,
    },
    /// By the JVM in the process, without a stop.
    ByJvm,
    /// By Node.js through its inspector, without a stop.
    ByNode {
        /// Address at which the inspector listened.
        address: SocketAddr,
        /// State of the inspector's port afterwards.
        port: InspectorPort,
    },
}

/// State of the inspector's port after an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InspectorPort {
    /// Opened for the attachment, and closed.
    Closed,
    /// Open before the attachment, and still open.
    WasOpen,
    /// Opened for the attachment. Node closes it when its JavaScript returns to the event loop, unless a debugger is
    /// connected.
    StillOpen,
}
