//! The reply to `doctor`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::open_enum::{OpenEnum, named_enums};

/// Diagnosis of why profiling cannot work in the process: the reply to `doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorReport {
    /// Whether there are no findings.
    pub healthy: bool,
    /// Problems found, most severe first.
    pub findings: Vec<Finding>,
}

/// One problem that `doctor` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// Name of the problem, for scripts.
    pub kind: Cow<'static, str>,
    /// Consequence of the problem for profiling.
    pub severity: OpenEnum<Severity>,
    /// Description of the problem. It names the object concerned.
    pub message: String,
    /// Remedy: one imperative sentence.
    pub remedy: String,
}

/// Formats the findings with their remedies, as text for people: two lines each. Without findings, a line says that
/// nothing prevents a heap profile.
pub fn findings_text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "healthy: nothing prevents a heap profile".to_owned();
    }
    let line = |finding: &Finding| {
        let Finding {
            severity,
            message,
            remedy,
            ..
        } = finding;
        format!("{severity}: {message}\n  {remedy}")
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

named_enums! {
    /// Severity of a finding.
    Severity {
        /// Profiling cannot be started, or a dump cannot be kept.
        Error = "error",
        /// Profiling works with a limitation.
        Warning = "warning",
        /// Profiling works, but in a way that may be unexpected.
        Notice = "notice",
    }
}
