//! A message.

use crate::{ArgumentSpec, ReplyType};

/// A message of `memory_profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// What it is sent as.
    pub name: &'static str,
    /// What it does, in one line that begins with a verb and has no period.
    pub help: &'static str,
    /// Whether it changes the host.
    pub effect: Effect,
    /// How long its answer may take.
    pub pace: ReplyLatency,
    /// The type of what it is answered with.
    pub reply: ReplyType,
    /// In the order in which help shows them.
    pub arguments: &'static [ArgumentSpec],
}

/// What a message does to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only tells.
    ReadOnly,
    /// It may change what the host does or keeps.
    Mutating,
}

/// How long the answer to a message may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyLatency {
    /// It comes at once, also while a dump is taken.
    Immediate,
    /// It may take as long as a dump, or longer.
    Long,
}
