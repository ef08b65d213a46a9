//! Why a process is not entered, as an error of this program's.

use std::fs;

use memprof_attach::Error;

use crate::exit::{FAILED, UNAVAILABLE, with_exit_code};

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
            with_exit_code(refusal.exit_code(), format!("{process}: {refusal}{remedy}"))
        }
        Error::NotLoaded(why) => with_exit_code(
            UNAVAILABLE,
            format!("{process}: the plugin was not started: {why}"),
        ),
        Error::NoInspector(why) => with_exit_code(UNAVAILABLE, format!("{process}: {why}")),
        error => with_exit_code(FAILED, format!("{process}: {error}")),
    }
}
