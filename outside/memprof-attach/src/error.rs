//! Errors of attaching.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use memprof_ptrace::{ProgramWatch, Refusal};

/// End of the sentence of [`AttachError::LeftMapped`].
pub const LEFT_MAPPED: &str =
    "up to 150 KiB of memprof's stay mapped there, without effect, until the process ends";

/// Reason why the plugin was not loaded. The process continues as before.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process cannot be attached to.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The process cannot be attached to through Node's inspector.
    #[error(transparent)]
    NoInspector(#[from] InspectorError),
    /// Another command is attaching to the process.
    #[error("another memprof is attaching to it at this moment; try again")]
    Busy,
    /// A step of the attachment failed.
    #[error("{0}")]
    Failed(String),
    /// A step failed, and no thread could give the memory back that the steps before had mapped.
    #[error("{0}; {LEFT_MAPPED}")]
    LeftMapped(Box<Self>),
    /// The functions of its allocator cannot be patched: the function, and the reason.
    #[error("its own malloc cannot be led to memprof: {0}")]
    NotPatched(String),
    /// Patching the functions of its allocator would stop all threads for too long.
    #[error(
        "its own malloc was not led to memprof: its {threads} threads would stand still for about {} ms, more than the \
         {} ms that are allowed; allow it by `memprof attach --max-pause {}ms`",
        .estimate.as_millis(),
        .most.as_millis(),
        2 * .estimate.as_millis()
    )]
    LongPause {
        /// Number of threads of the process.
        threads: u32,
        /// Estimated time for which all of them would be stopped.
        estimate: Duration,
        /// Longest time allowed (`--max-pause`).
        most: Duration,
    },
    /// Error text of the loader, or of the plugin itself.
    #[error("{0}")]
    NotLoaded(String),
    /// A file could not be read or written.
    #[error("{what}: {cause}")]
    Io {
        /// Act that failed, and the file.
        what: String,
        /// Error of the system call.
        cause: io::Error,
    },
}

/// Reason why a process cannot be attached to through Node's inspector. The text is a predicate whose subject is the
/// process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectorError {
    /// Another program, which may react to SIGUSR1 in any way.
    #[error("is no Node (nothing in it exports node::Start); attach without --node-inspector")]
    NotNode,
    /// SIGUSR1 would end the process.
    #[error(
        "has no handler of SIGUSR1, which would end it: it was started with --disable-sigusr1, or only just now; \
         attach without --node-inspector"
    )]
    NoHandler,
    /// Its ports cannot be reached from this network namespace.
    #[error(
        "is in another network namespace, where its inspector cannot be reached; attach without --node-inspector, \
         or from there: nsenter --target {pid} --net memprof attach --node-inspector {pid}"
    )]
    OtherNetwork {
        /// Pid of the process.
        pid: u32,
    },
    /// The path is in another root directory or mount namespace, or is not UTF-8.
    #[error(
        "does not see the plugin's file {0}; name one that it sees with --plugin, or attach without --node-inspector"
    )]
    HiddenPlugin(String),
    /// Loading the plugin would load a second copy.
    #[error(
        "has loaded the plugin from another file, or from one that was replaced since; attach without --node-inspector"
    )]
    OtherPlugin,
    /// Node's handler makes some interrupted calls fail: `fs.readSync` throws EINTR.
    #[error(
        "its main thread waits in a call that SIGUSR1 could make fail ({call}); try again when it does not, or attach \
         without --node-inspector"
    )]
    Disturbed {
        /// Kernel function in which the main thread waits, from /proc/PID/wchan, or "unknown".
        call: String,
    },
    /// No port of the process answers as an inspector.
    #[error(
        "did not open its inspector for 5 s after SIGUSR1: its JavaScript waits for native code, the program handles \
         SIGUSR1 itself, or the port is taken{}; if it opens it later, it leaves it open",
        port_in_use_note(.is_taken)
    )]
    NotOpened {
        /// Whether another process listens on Node's default port.
        is_taken: bool,
    },
    /// The inspector, which has its own thread, accepted the request, but JavaScript did not run it in time.
    #[error(
        "its JavaScript did not run for 10 s, and will not load the plugin when it runs again{}",
        still_open_note(.address, .was_opened)
    )]
    Late {
        /// Address at which the inspector listens.
        address: SocketAddr,
        /// Whether the inspector was opened for the attachment.
        was_opened: bool,
    },
}

/// Returns the note for an error text that another process listens on the inspector's default port; empty unless
/// `is_taken`.
fn port_in_use_note(is_taken: &bool) -> &'static str {
    match is_taken {
        true => " (another process listens on 9229)",
        false => "",
    }
}

/// Returns the note for an error text that the inspector is still open at `address`. Empty unless it `was_opened` for
/// the attachment.
fn still_open_note(address: &SocketAddr, was_opened: &bool) -> String {
    match was_opened {
        true => format!("; until then its inspector is open at {address}"),
        false => String::new(),
    }
}

/// Runs `work`, which attaches to the process `pid`. If `work` fails because the process ends or executes another
/// program, the error says so.
pub(crate) fn explain_exit_or_exec<T>(
    pid: u32,
    work: impl FnOnce() -> Result<T, AttachError>,
) -> Result<T, AttachError> {
    let program = ProgramWatch::open(pid);
    work().map_err(|error| program.explain_error(error, AttachError::may_be_exit_or_exec))
}

impl AttachError {
    /// Returns whether the cause may be that the process is about to end or to execute another program.
    fn may_be_exit_or_exec(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.may_be_exit_or_exec(),
            Self::LeftMapped(error) => error.may_be_exit_or_exec(),
            Self::NoInspector(_)
            | Self::Failed(_)
            | Self::NotPatched(_)
            | Self::NotLoaded(_)
            | Self::Io { .. } => true,
            Self::Busy | Self::LongPause { .. } => false,
        }
    }

    /// If `are_left`, adds to the error that memprof's pages stay mapped in the process.
    pub(crate) fn with_pages_left(self, are_left: bool) -> Self {
        match are_left {
            true => Self::LeftMapped(Box::new(self)),
            false => self,
        }
    }

    /// Returns a function, for `map_err`, that builds an I/O error. `act` is the act that failed, or its file.
    pub(crate) fn io_error(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = act.into();
        move |cause| Self::Io { what, cause }
    }
}
