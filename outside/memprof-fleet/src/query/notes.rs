//! Notes on the result of a query: files that do not count, clocks that are wrong.

use memprof_output::note;
use std::sync::{Mutex, PoisonError};

/// Receiver of notes.
#[derive(Debug)]
pub(crate) enum Notes {
    /// Prints them to stderr.
    Print,
    /// Collects them without duplicates, for the response.
    Collect(Mutex<Vec<String>>),
}

impl Notes {
    /// Prints a note, or collects it unless it was collected before.
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

    /// Returns the collected notes, oldest first; empty if they are printed.
    pub(crate) fn texts(&self) -> Vec<String> {
        match self {
            Self::Print => Vec::new(),
            Self::Collect(notes) => notes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
