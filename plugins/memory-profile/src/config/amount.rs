//! Sizes and percentages in the configuration.

use std::fmt;

use memprof_messages::{SIZE_EXAMPLE, has_unit, parse_size};
use serde::Deserialize;

/// A size or percentage, as written in the configuration.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a size such as \"64MiB\", in quotes and with its unit"
)]
pub(super) enum SizeOrShare {
    Number(i64),
    Text(String),
}

impl SizeOrShare {
    /// Returns the bytes of a size with a unit. Rejects a bare number, because it could mean bytes, megabytes or
    /// percent.
    ///
    /// # Errors
    /// The value is not a size, or has no unit. The text contains `key`, the value and valid examples.
    pub(super) fn size_with_unit(&self, key: &str) -> Result<u64, String> {
        // For the keys that accept a percentage as well.
        let share = |number: &str| match key {
            "rss_above" | "cgroup_above" => format!(" or \"{number}%\""),
            _ => String::new(),
        };
        let without_unit = |number: &str| {
            let examples = format!("\"{number}MiB\"{}", share(number));
            Err(format!(
                "{key} = {self} has no unit: for example {examples}; valid: {SIZE_EXAMPLE}"
            ))
        };
        match self {
            Self::Number(number) => without_unit(&number.to_string()),
            Self::Text(text) => match parse_size(text) {
                Some(_) if !has_unit(text) => without_unit(text),
                Some(bytes) => Ok(bytes),
                None => Err(format!(
                    "{key} = {self} is not a size, for example \"4GiB\"{}; valid: {SIZE_EXAMPLE}",
                    share("80")
                )),
            },
        }
    }

    /// Returns the number of a percentage such as `80%`; it may exceed 100. `None` for any other value, and above 255.
    pub(super) fn percent(&self) -> Option<u8> {
        match self {
            Self::Number(_) => None,
            Self::Text(text) => text.strip_suffix('%')?.trim_end().parse().ok(),
        }
    }

    /// Returns the bytes of a size, with or without a unit. For a key whose name implies that a bare number means
    /// bytes.
    ///
    /// # Errors
    /// The value is not a size, or is below 0.
    pub(super) fn size_or_bare_number(&self, key: &str) -> Result<u64, String> {
        match self {
            Self::Number(number) => {
                u64::try_from(*number).map_err(|_| format!("{key} = {number} is below 0"))
            }
            // A text that is not a size fails in `size_with_unit`, whose error lists valid ones.
            Self::Text(text) => parse_size(text).map_or_else(|| self.size_with_unit(key), Ok),
        }
    }
}

impl fmt::Display for SizeOrShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}
