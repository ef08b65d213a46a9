//! The reply to `doctor`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::open_enum::{OpenEnum, words};

/// What `doctor` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorReport {
    /// Nothing is wrong.
    pub healthy: bool,
    /// The worst first.
    pub findings: Vec<Finding>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// A word for scripts.
    pub kind: Cow<'static, str>,
    /// How bad it is.
    pub severity: OpenEnum<Severity>,
    /// What is wrong, naming the thing.
    pub message: String,
    /// What mends it.
    pub remedy: String,
}

words! {
    /// How bad it is.
    Severity {
        /// Profiling cannot be on, or a dump cannot be kept.
        Error = "error",
        /// It works, with a catch.
        Warning = "warning",
        /// It works, otherwise than one may expect.
        Notice = "notice",
    }
}
