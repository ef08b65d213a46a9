//! Why a process is not entered, as an error of this program's.

use std::fs;

use memprof_attach::Error;

use crate::exit::{FAILED, UNAVAILABLE, coded};

/// Names the process, and what helps.
pub(crate) fn refused(pid: u32, error: &Error) -> anyhow::Error {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    let process = match name {
        Ok(name) => format!("{pid} ({})", name.trim_end()),
        Err(_) => pid.to_string(),
    };
    match error {
        Error::Refused(refusal) => {
            let remedy = memprof_attach::remedy(pid, refusal);
            let remedy = remedy.map(|remedy| format!("; {remedy}"));
            let remedy = remedy.unwrap_or_default();
            coded(refusal.exit_code(), format!("{process}: {refusal}{remedy}"))
        }
        Error::NotLoaded(why) => coded(
            UNAVAILABLE,
            format!("{process}: the plugin was not started: {why}"),
        ),
        Error::NoInspector(why) => coded(UNAVAILABLE, format!("{process}: {why}")),
        error => coded(FAILED, format!("{process}: {error}")),
    }
}
