//! Interface to one host, local or remote.

use std::fmt;
use std::io;

use memprof_host::client::PassedFile;
use memprof_host::protocol::HostInfo;
use memprof_plugin_abi::Status;

/// Client of a host: over its control socket, or in this process. Calls block.
pub trait HostClient: fmt::Debug + Send + Sync {
    /// Returns the host's process and name.
    ///
    /// # Errors
    /// The host does not answer.
    fn host_info(&self) -> Result<HostInfo, HostUnavailable>;

    /// Returns the host's process id in this PID namespace, by which /proc shows its files. `None` if its process is
    /// not visible from here: in a container, [`HostInfo::pid`] is another number, or even another process's.
    ///
    /// # Errors
    /// The host does not answer.
    fn visible_pid(&self) -> Result<Option<u32>, HostUnavailable>;

    /// Sends the message `name` to the plugin `memory_profile`. `args` are `key=value` words with blanks between them.
    /// Returns the plugin's reply, also if it is an error.
    ///
    /// # Errors
    /// The host does not answer.
    fn send_message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable>;

    /// Sends a message whose reply is a dump: `fetch`, or `dump` with `keep=off`. An error of the plugin is returned as
    /// [`DumpResponse::Refused`].
    ///
    /// # Errors
    /// The host does not answer, or its successful reply has no dump.
    fn request_dump(&self, name: &str, args: &str) -> Result<DumpResponse, HostUnavailable>;
}

/// Reply to a request for a dump.
#[derive(Debug)]
pub enum DumpResponse {
    /// The dump, which does not change any more.
    File {
        /// Content type of the dump.
        content_type: String,
        /// The dump, read from its start.
        file: PassedFile,
    },
    /// Error of the plugin.
    Refused(PluginReply),
}

/// Reply of the plugin.
#[derive(Clone, Debug)]
pub struct PluginReply {
    /// 0, or a negative status of memprof.h.
    pub status: Status,
    /// Bytes of the reply: a JSON object or text.
    pub body: Vec<u8>,
}

/// Reason why a host does not answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct HostUnavailable(pub String);

impl From<io::Error> for HostUnavailable {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Returns the error for a successful reply without a dump.
pub(crate) fn no_dump_error() -> HostUnavailable {
    HostUnavailable("it passed no dump".to_owned())
}
