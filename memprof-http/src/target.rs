//! One host, however it is reached.

use std::fmt;
use std::io;

use memprof_host::client::Passed;
use memprof_host::protocol::HostInfo;
use memprof_plugin_abi::Status;

/// A host: over its control socket, or in this very process. Calls block.
pub trait Target: fmt::Debug + Send + Sync {
    /// Who it is.
    ///
    /// # Errors
    /// It does not answer.
    fn host(&self) -> Result<HostInfo, Gone>;

    /// Sends a message to `memory_profile`; `args` are `key=value` words. Its own error is an answer.
    ///
    /// # Errors
    /// It does not answer.
    fn message(&self, name: &str, args: &str) -> Result<Answer, Gone>;

    /// The same of a message whose answer is a dump: `fetch`, or `dump keep=off`.
    ///
    /// # Errors
    /// It does not answer, or with no dump.
    fn dump(&self, name: &str, args: &str) -> Result<Dumped, Gone>;
}

/// What came of asking for a dump.
#[derive(Debug)]
pub enum Dumped {
    /// What nobody changes any more.
    Whole {
        /// What its bytes are.
        content_type: String,
        /// At its start.
        file: Passed,
    },
    /// The plugin's own error.
    Refused(Answer),
}

/// What the plugin replied.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 0, or one of the negative codes of memprof.h.
    pub status: Status,
    /// The bytes: a JSON object, or a text.
    pub body: Vec<u8>,
}

/// Why a host does not answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Gone(pub String);

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

pub(crate) fn no_dump() -> Gone {
    Gone("it passed no dump".to_owned())
}
