//! Who takes the samples: the allocator itself, or memprof's sampler, which serves any.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Who shall sample.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplerChoice {
    /// The allocator where it can, else ours.
    #[default]
    Auto,
    /// The allocator.
    Allocator,
    /// Ours.
    Ours,
}

impl FromStr for SamplerChoice {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        match word {
            "auto" => Ok(Self::Auto),
            "allocator" => Ok(Self::Allocator),
            "ours" => Ok(Self::Ours),
            _ => Err(
                Error::new(ErrorKind::Invalid, format!("unknown sampler {word:?}"))
                    .remedy("valid: auto, allocator, ours"),
            ),
        }
    }
}

/// Whether memprof's sampler samples at an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Samples {
    /// The allocator does, or nobody.
    Not,
    /// Ours does, because the allocator cannot.
    InPlace,
    /// Ours does, because it was asked for.
    Asked,
}

/// What memprof's own sampler did, where it serves an allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SamplerStatus {
    /// How the program's calls lead to the sampler.
    pub through: Through,
    /// Calls of the program that lead to the sampler now.
    pub slots: Slots,
    /// Allocations that were sampled since the last `reset`.
    pub samples: u64,
    /// Of these, not freed.
    pub live_samples: u64,
    /// Of these, not remembered: its tables were full.
    pub lost: u64,
    /// What its tables take, in bytes.
    pub table_bytes: u64,
    /// Allocations of children of vfork(2) or `_Fork(3)` that were due, and not sampled.
    pub in_children: u64,
    /// The pid of the last of these children, as they see it.
    pub last_child: Option<i32>,
}

/// How allocations are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Through {
    /// The slots of the dynamic linker are patched.
    #[default]
    Slots,
    /// jemalloc calls the sampler: it is linked into the program.
    JemallocHooks,
}

/// Slots of the dynamic linker that lead to `malloc` and its kin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Slots {
    /// They lead to the sampler.
    pub patched: usize,
    /// They lead neither to the allocator nor to the sampler: what is allocated through them is not
    /// seen.
    pub foreign: usize,
    /// Objects that keep addresses of the allocator's functions in their data: what they allocate
    /// through those is not seen.
    pub unseen_objects: usize,
    /// Objects with a `malloc` of their own, which serves only some libraries.
    pub other_mallocs: usize,
    /// They could not be written.
    pub refused: usize,
}
