//! One host, however it is reached.

use std::fmt;
use std::fs::File;
use std::io;

use memprof_host::protocol::HostInfo;
use memprof_plugin_abi::Status;

/// The plugin that everything here is about.
pub(crate) const PLUGIN: &str = "memory_profile";

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
#[derive(Debug)]
pub enum Fetched {
    /// Its bytes, in a file that nobody changes any more.
    Dump(File),
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
