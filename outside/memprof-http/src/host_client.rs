//! One host, however it is reached.

use std::fmt;
use std::io;

use memprof_host::client::PassedFile;
use memprof_host::protocol::HostInfo;
use memprof_plugin_abi::Status;

/// A host: over its control socket, or in this very process. Calls block.
pub trait HostClient: fmt::Debug + Send + Sync {
    /// Who it is.
    ///
    /// # Errors
    /// It does not answer.
    fn host(&self) -> Result<HostInfo, HostUnavailable>;

    /// Sends a message to `memory_profile`; `args` are `key=value` words. Its own error is an answer.
    ///
    /// # Errors
    /// It does not answer.
    fn message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable>;

    /// The same of a message whose answer is a dump: `fetch`, or `dump keep=off`.
    ///
    /// # Errors
    /// It does not answer, or with no dump.
    fn dump(&self, name: &str, args: &str) -> Result<DumpResponse, HostUnavailable>;
}

/// What came of asking for a dump.
#[derive(Debug)]
pub enum DumpResponse {
    /// What nobody changes any more.
    File {
        /// What its bytes are.
        content_type: String,
        /// At its start.
        file: PassedFile,
    },
    /// The plugin's own error.
    Refused(PluginReply),
}

/// What the plugin replied.
#[derive(Clone, Debug)]
pub struct PluginReply {
    /// 0, or one of the negative codes of memprof.h.
    pub status: Status,
    /// The bytes: a JSON object, or a text.
    pub body: Vec<u8>,
}

/// Why a host does not answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct HostUnavailable(pub String);

impl From<io::Error> for HostUnavailable {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

pub(crate) fn no_dump() -> HostUnavailable {
    HostUnavailable("it passed no dump".to_owned())
}
