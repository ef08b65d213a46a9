//! One host, however it is reached.

use std::fmt;
use std::io::{self, Read};

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

    /// Opens a kept dump of that id, which is a single word.
    ///
    /// # Errors
    /// It does not answer.
    fn fetch(&self, id: &str) -> Result<Fetched, Gone>;
}

/// What came of fetching a dump.
pub enum Fetched {
    /// What nobody changes any more.
    Dump {
        /// What its bytes are.
        content_type: String,
        /// Its bytes.
        body: Box<dyn Read + Send>,
    },
    /// The plugin's own error.
    Refused(Answer),
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dump { content_type, .. } => f.debug_tuple("Dump").field(content_type).finish(),
            Self::Refused(answer) => f.debug_tuple("Refused").field(answer).finish(),
        }
    }
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
