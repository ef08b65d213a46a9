//! Configuration values of one type each. Their error messages contain no names of Rust types.

use serde::Deserialize;

/// A whole number, 0 or more.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a whole number, not below 0")]
pub(super) enum WholeNumber {
    Number(usize),
}

impl WholeNumber {
    /// Returns the configured number, which is 0 or more; the user of this type checks its range.
    pub(super) fn number(&self) -> usize {
        let Self::Number(number) = self;
        *number
    }
}

/// log2 of a sample interval. [`Config::sample_interval`](super::Config::sample_interval) checks its range.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected log2 of the bytes between two samples, from 10 (1KiB) to 24 (16MiB): 19 stands for 512KiB"
)]
pub(super) enum LgSample {
    Number(u64),
}

impl LgSample {
    /// Returns the configured log2, which may be out of range.
    pub(super) fn number(&self) -> u64 {
        let Self::Number(number) = self;
        *number
    }
}

/// Size of a sample interval, with or without a unit. It is parsed like the argument of a message.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a power of two from \"1KiB\" to \"16MiB\", for example sample_interval = \"512KiB\""
)]
pub(super) enum IntervalText {
    Text(String),
    Bytes(u64),
}

impl IntervalText {
    /// Returns the size as text, as in the argument of a message; a bare number is in bytes.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => bytes.to_string(),
        }
    }
}

/// Text of a duration. The user of this type parses it.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a duration in quotes and with its unit, for example \"10m\" or \"7d\""
)]
pub(super) enum Period {
    Text(String),
}

impl Period {
    /// Returns the configured text, which may not be a duration.
    pub(super) fn text(&self) -> &str {
        let Self::Text(text) = self;
        text
    }
}
