//! Stub of memprof's walker for the processors that it does not support.

use std::iter;

use crate::allocators::mallctl::Mallctl;
use crate::error::Result;

/// Counts; always 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HookStats {
    pub(super) samples: u64,
    pub(super) fallbacks: u64,
    pub(super) cut: u64,
    pub(super) compared: u64,
    pub(super) agreed: u64,
    pub(super) given_up: bool,
}

/// Uninhabited, because the walker can never be installed.
#[derive(Debug)]
pub(super) enum InstalledWalker {}

impl InstalledWalker {
    /// Always fails, because memprof's walker is built for x86-64 only.
    ///
    /// # Errors
    /// Always, with that reason as text.
    pub(super) fn install(_: &Mallctl, _: bool, _: u64) -> std::result::Result<Self, String> {
        Err("memprof's stack walk is built for x86-64 only".to_owned())
    }

    pub(super) fn uninstall(&self, _: &Mallctl) -> Result<()> {
        match *self {}
    }

    pub(super) fn hook_stats(&self) -> HookStats {
        match *self {}
    }
}

/// Does nothing, because no unwind rules are read.
pub(super) fn clear_rules() {}

/// Does nothing, because no stacks are walked.
pub(super) fn clear_stack_cache() {}

/// Returns 0, because no unwind rules are read.
pub(super) fn rules_read_count() -> u64 {
    0
}

/// Does nothing, because samples have no age.
pub(crate) fn set_alloc_time(_: Option<u32>) {}

/// Does nothing, because no stacks are walked.
pub(super) fn set_code_generation(_: Option<u32>) {}

/// Returns false, because no stacks are walked.
pub(super) fn walked_every_stack() -> bool {
    false
}

/// Returns all frames, because no stack has a code generation.
pub(super) fn without_code_generation(frames: &[u64]) -> &[u64] {
    frames
}

pub(crate) const MAX_KEYS: usize = 8;
pub(crate) const MAX_SETS: usize = 0;

/// Never read.
#[derive(Debug)]
pub(crate) struct LabelContext {
    pub(crate) module: usize,
    pub(crate) offset: usize,
    pub(crate) keys: [Option<u8>; MAX_KEYS],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum LabelKeyRegistry {}

impl LabelKeyRegistry {
    pub(crate) fn assign_key_number(self, _: &str) -> Option<u8> {
        match self {}
    }
}

/// Returns no thread contexts, because no labels are recorded.
pub(crate) fn find_thread_contexts() -> Vec<super::ThreadContext> {
    Vec::new()
}

/// Does nothing, because no labels are recorded.
pub(crate) fn set_labels(_: &[LabelContext], _: Option<u8>) {}

/// Counts; always 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelSetCounts {
    pub(crate) seen: usize,
    pub(crate) others: u64,
    pub(crate) bytes: usize,
}

/// Returns zeros, because no labels are recorded.
pub(crate) fn label_set_counts() -> LabelSetCounts {
    LabelSetCounts {
        seen: 0,
        others: 0,
        bytes: 0,
    }
}

/// Visits nothing, because no labels are recorded.
pub(crate) fn for_each_label_set(_: impl FnMut(u32, iter::Empty<(u8, &[u8])>)) {}

/// Does nothing: a forked child inherits no walker.
pub(crate) fn set_activation_time_limited(_: bool) {}
