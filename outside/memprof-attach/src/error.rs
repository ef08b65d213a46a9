//! Why the plugin is not in the process.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use memprof_ptrace::Refusal;

/// Why the plugin is not in the process, which goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be attached to.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It cannot be entered through Node's inspector.
    #[error(transparent)]
    NoInspector(#[from] InspectorError),
    /// Another memprof is at it.
    #[error("another memprof is attaching to it at this moment; try again")]
    Busy,
    /// Something was refused to it on the way.
    #[error("{0}")]
    Failed(String),
    /// The calls of its allocator cannot be led to memprof: which function, and why.
    #[error("its own malloc cannot be led to memprof: {0}")]
    NotPatched(String),
    /// The calls of its allocator would be led to memprof while all its threads stand still.
    #[error(
        "its own malloc was not led to memprof: its {threads} threads would stand still for about {} ms, more than the \
         {} ms that are allowed; allow it by `memprof attach --max-pause {}ms`",
        .estimate.as_millis(),
        .most.as_millis(),
        2 * .estimate.as_millis()
    )]
    LongPause {
        /// Threads of the process.
        threads: u32,
        /// Estimated pause of all of them.
        estimate: Duration,
        /// Longest pause allowed (`--max-pause`).
        most: Duration,
    },
    /// The loader, or the plugin itself, said so.
    #[error("{0}")]
    NotLoaded(String),
    /// A file could not be read or written.
    #[error("{what}: {cause}")]
    Io {
        /// The act that failed, and the file.
        what: String,
        /// Why.
        cause: io::Error,
    },
}

/// Why a process is not entered through Node's inspector: sentences whose subject is the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectorError {
    /// Another program, which may do anything on SIGUSR1.
    #[error("is no Node (nothing in it exports node::Start); attach without --node-inspector")]
    NotNode,
    /// SIGUSR1 would end it.
    #[error(
        "has no handler of SIGUSR1, which would end it: it was started with --disable-sigusr1, or only just now; \
         attach without --node-inspector"
    )]
    NoHandler,
    /// Its ports are not to be reached from here.
    #[error(
        "is in another network namespace, where its inspector cannot be reached; attach without --node-inspector, \
         or from there: nsenter --target {pid} --net memprof attach --node-inspector {pid}"
    )]
    OtherNetwork {
        /// As it was asked for.
        pid: u32,
    },
    /// A path in another root directory or mount namespace, or one that is not UTF-8.
    #[error(
        "does not see the plugin's file {0}; name one that it sees with --plugin, or attach without --node-inspector"
    )]
    HiddenPlugin(String),
    /// There would be two.
    #[error(
        "has loaded the plugin from another file, or from one that was replaced since; attach without --node-inspector"
    )]
    OtherPlugin,
    /// Node's handler does not have interrupted calls made again: `fs.readSync` throws EINTR.
    #[error(
        "its main thread waits in a call that SIGUSR1 could make fail ({call}); try again when it does not, or attach \
         without --node-inspector"
    )]
    Disturbed {
        /// The kernel's function in which it waits, as /proc/PID/wchan tells it, or "unknown".
        call: String,
    },
    /// Nothing listens, or something else.
    #[error(
        "did not open its inspector for 5 s after SIGUSR1: its JavaScript waits for native code, the program handles \
         SIGUSR1 itself, or the port is taken{}; if it opens it later, it leaves it open",
        port_in_use_note(.is_taken)
    )]
    NotOpened {
        /// Whether another process has the port that Node takes unless told otherwise.
        is_taken: bool,
    },
    /// The inspector listens on a thread of its own, and passes on what it gets.
    #[error(
        "its JavaScript did not run for 10 s, and will not load the plugin when it runs again{}",
        still_open_note(.address, .was_opened)
    )]
    Late {
        /// Where the inspector listens.
        address: SocketAddr,
        /// Whether it was opened for this.
        was_opened: bool,
    },
}

fn port_in_use_note(is_taken: &bool) -> &'static str {
    match is_taken {
        true => " (another process listens on 9229)",
        false => "",
    }
}

fn still_open_note(address: &SocketAddr, was_opened: &bool) -> String {
    match was_opened {
        true => format!("; until then its inspector is open at {address}"),
        false => String::new(),
    }
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause }
    }
}
