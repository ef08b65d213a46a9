//! Commands whose cost is measured at three sizes of their input, as the file `growth.toml` lists them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Factors of the three sizes.
pub(crate) const FACTORS: [u64; 3] = [1, 4, 16];

/// A command and its input. Scripts are for sh(1), in a directory of the case; `$N` is the size.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrowthCase {
    pub(crate) name: String,
    /// Noun for what is counted by the size: objects, stacks, mappings.
    pub(crate) per: String,
    /// The smallest size.
    pub(crate) size: u64,
    /// The smallest size of the short form.
    pub(crate) short_size: u64,
    /// Script that prepares the input. Processes that it leaves running are killed after the case.
    pub(crate) setup: String,
    /// Script that is measured.
    pub(crate) command: String,
    /// Script that undoes the command, so that it can run again.
    #[serde(default)]
    pub(crate) undo: String,
    /// Most growth of time and counts: the exponent of the size.
    #[serde(default = "default_exponent")]
    pub(crate) exponent: f64,
    /// File of the input, and the most memory that the command may use at its largest size, in bytes of that file.
    pub(crate) memory: Option<InputMemory>,
    /// Another program with the same task.
    pub(crate) peer: Option<Peer>,
}

/// Most memory for an input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputMemory {
    pub(crate) file: String,
    pub(crate) ratio: f64,
}

/// A program to which memprof is compared at the largest size.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// Script whose last line begins with its seconds of the processor.
    pub(crate) command: String,
    /// Most seconds of memprof for each of the peer's.
    pub(crate) ratio: f64,
}

/// Limit of the exponent for a case that sets none. Cost in proportion to the size has the exponent 1; the rest is room
/// for chance.
fn default_exponent() -> f64 {
    1.15
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<GrowthCase>,
}

impl GrowthCase {
    /// Reads the cases of a TOML file. Fails if it is malformed or has none.
    pub(crate) fn read_all(path: &Path) -> Result<Vec<Self>> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let file: File = toml::from_str(&text).with_context(|| path.display().to_string())?;
        ensure!(!file.case.is_empty(), "{} has no case", path.display());
        Ok(file.case)
    }

    /// Returns the three sizes: [`FACTORS`] times the smallest size, which is `short_size` if `is_short`, else `size`.
    pub(crate) fn sizes(&self, is_short: bool) -> [u64; 3] {
        let smallest = if is_short { self.short_size } else { self.size };
        FACTORS.map(|factor| factor * smallest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_this_project_are_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("growth/growth.toml");
        for case in GrowthCase::read_all(&path).unwrap() {
            assert!(case.short_size <= case.size, "{}", case.name);
            assert!(case.exponent >= 1.0, "{}", case.name);
        }
    }
}
