//! A message.

use crate::Argument;

/// A message of `memory_profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is sent as.
    pub name: &'static str,
    /// What it does, in one line that begins with a verb and has no period.
    pub help: &'static str,
    /// Whether it changes the host.
    pub effect: Effect,
    /// In the order in which help shows them.
    pub arguments: &'static [Argument],
}

/// What a message does to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only tells.
    Reads,
    /// It may change what the host does or keeps.
    Changes,
}
