//! Values of the config, each of one kind, whose mistakes are told without names of Rust's types.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a whole number, not below 0")]
pub(super) enum WholeNumber {
    Number(usize),
}

impl WholeNumber {
    pub(super) fn number(&self) -> usize {
        let Self::Number(number) = self;
        *number
    }
}

/// Its range is checked where it is used.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected log2 of the bytes between two samples, from 10 (1KiB) to 24 (16MiB): 19 stands for 512KiB"
)]
pub(super) enum LgSample {
    Number(u64),
}

impl LgSample {
    pub(super) fn number(&self) -> u64 {
        let Self::Number(number) = self;
        *number
    }
}

/// A duration, as it is written.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a duration in quotes and with its unit, for example \"10m\" or \"7d\""
)]
pub(super) enum Period {
    Text(String),
}

impl Period {
    pub(super) fn text(&self) -> &str {
        let Self::Text(text) = self;
        text
    }
}
