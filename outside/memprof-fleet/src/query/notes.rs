//! What is to be known of an answer besides it: files that are not counted, clocks that are off.

use std::sync::{Mutex, PoisonError};

use crate::output::note;

/// The receiver of notes about files and agents that are left out.
#[derive(Debug)]
pub(crate) enum Notes {
    /// To standard error.
    Print,
    /// Into the answer.
    Collect(Mutex<Vec<String>>),
}

impl Notes {
    pub(crate) fn add(&self, text: String) {
        match self {
            Self::Print => note(&text),
            Self::Collect(notes) => {
                let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                if !notes.contains(&text) {
                    notes.push(text);
                }
            }
        }
    }

    /// Those that were kept.
    pub(crate) fn texts(&self) -> Vec<String> {
        match self {
            Self::Print => Vec::new(),
            Self::Collect(notes) => notes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
