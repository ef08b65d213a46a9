//! Specification of a message.

use crate::{ArgumentSpec, ReplyType};

/// Specification of a message of `memory_profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// Name by which it is sent.
    pub name: &'static str,
    /// Description in one line. It begins with a verb and has no period.
    pub help: &'static str,
    /// Whether it changes the host.
    pub effect: Effect,
    /// Expected time until the reply.
    pub latency: ReplyLatency,
    /// Type of the reply.
    pub reply: ReplyType,
    /// Arguments, in the order in which help shows them.
    pub arguments: &'static [ArgumentSpec],
}

/// Effect of a message on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The message changes nothing.
    ReadOnly,
    /// The message may change the host's behaviour or its files.
    Mutating,
}

/// Expected time until the reply to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyLatency {
    /// The reply comes immediately, even while a dump is running.
    Immediate,
    /// The reply may take as long as a dump, or longer.
    Long,
}
