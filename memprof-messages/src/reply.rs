//! What every JSON reply has: a status, a text for people, and the fields.

use serde::{Deserialize, Serialize};

use crate::words::words;

/// A reply: what a person reads, and the fields that a program reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply<T> {
    /// Whether it did what was asked.
    pub status: Answer,
    /// For people; may have several lines.
    pub text: String,
    /// Of the message's own reply type.
    #[serde(flatten)]
    pub fields: T,
}

/// What a refused message is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What happened, naming the thing.
    pub message: String,
    /// What would help; empty where nothing is known.
    pub remedy: String,
    /// A word for programs, as `unavailable`.
    pub kind: String,
}

words! {
    /// The outcome of a message.
    Answer {
        /// It did what was asked.
        Ok = "ok",
        /// It did not.
        Error = "error",
    }
}
