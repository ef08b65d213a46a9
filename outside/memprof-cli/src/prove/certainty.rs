//! Certainty of the result of a search for leaks.

use memprof_leaks::{AnalysisReport, UnsearchedRole};
use serde::Serialize;

/// Certainty of the result, by the parts that were not searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Certainty {
    /// No unsearched part could change the result.
    Proven,
    /// Objects are reported to which an unsearched part may hold pointers.
    Probable,
    /// Nothing is reported, and an unsearched part may hold leaked objects.
    Unknown,
}

impl Certainty {
    /// Returns the certainty of a result with `leaked` leaked objects. Without leaks, it is unknown if some objects
    /// were not searched. With leaks, it is only probable if some memory was not searched for pointers.
    pub(super) fn from_report(report: &AnalysisReport, leaked: u64) -> Self {
        match leaked {
            0 if report.has_unsearched_part(UnsearchedRole::Objects) => Self::Unknown,
            0 => Self::Proven,
            _ if report.has_unsearched_part(UnsearchedRole::Pointers) => Self::Probable,
            _ => Self::Proven,
        }
    }
}
