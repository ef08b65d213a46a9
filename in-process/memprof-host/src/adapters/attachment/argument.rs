//! Argument that `memprof attach` passes: the lease, and the plugin's config.

use memprof_plugin_abi::Failure;
use serde::Deserialize;

use super::thread_limit::RaisedThreadLimit;
use crate::adapters::config::{self, Settings};

/// Argument of `memprof attach`, as TOML.
#[derive(Debug, Deserialize)]
pub(super) struct Attachment {
    /// Time until the attachment ends, in milliseconds.
    pub(super) lease_ms: u64,
    /// Whether forked children are attached to as well.
    #[serde(default)]
    pub(super) children: bool,
    /// Keys of the plugin's config, as `key=value`.
    #[serde(default)]
    words: Vec<String>,
    /// File with keys of the plugin's config.
    file: Option<ConfigFile>,
    /// Limit of threads, if it was raised for memprof's threads.
    pub(super) thread_limit: Option<RaisedThreadLimit>,
}

/// A config file that `memprof attach` has read.
#[derive(Debug, Deserialize)]
struct ConfigFile {
    /// Path where `memprof attach` runs.
    path: String,
    text: String,
}

impl Attachment {
    /// Parses the plugin's config: the `key=value` words, which override the keys of the file. Fails if a word has no
    /// `=`, if a key is given twice or has no name, if the file is no TOML, or if `control` or `allow` has an invalid
    /// value.
    pub(super) fn parse_settings(&self) -> Result<Settings, Failure> {
        let pairs = self.words.iter().map(|pair| config::split_pair(pair));
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let file = self.file.as_ref();
        let file = file.map(|file| (file.path.as_str(), file.text.as_str()));
        config::parse_setting_pairs_with_file(pairs, file)
    }
}
