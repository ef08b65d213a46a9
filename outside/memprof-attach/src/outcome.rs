//! What became of an attachment.

use std::net::SocketAddr;
use std::time::Duration;

/// How the plugin came into the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachOutcome {
    /// Threads were borrowed.
    ByThread {
        /// How long a thread stood still, for each time.
        stops: Vec<Duration>,
        /// The thread that was borrowed last.
        thread: u32,
        /// How many threads its user could have (`RLIMIT_NPROC`), and can have until the plugin leaves, where the
        /// limit was raised for it.
        thread_limit: Option<(u64, u64)>,
        /// The signals whose handlers must not fork from now on, and might: the process had one thread only.
        handled: Vec<String>,
    },
    /// The JVM in the process loaded it, and nothing stood still.
    ByJvm,
    /// Node loaded it, through its inspector, and nothing stood still.
    ByNode {
        /// Where the inspector listened.
        address: SocketAddr,
        /// Whether it still does.
        port: InspectorPort,
    },
}

/// What became of the inspector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InspectorPort {
    /// It was opened, and is closed.
    Closed,
    /// It was open before, and stays so.
    WasOpen,
    /// It was opened, and Node closes it when its JavaScript is back in the event loop and no debugger connected.
    StillOpen,
}
