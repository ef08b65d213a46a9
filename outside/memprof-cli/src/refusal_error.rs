//! Converts the reason why a process was not attached to into an error of this program.

use memprof_attach::{AttachError, LEFT_MAPPED};
use memprof_ptrace::{ProgramEnd, Refusal, read_proc_text};

use crate::exit::{FAILED, UNAVAILABLE, with_exit_code};

/// Builds the error for a process that has ended or executed another program meanwhile.
pub(crate) fn program_end_error(pid: u32, end: ProgramEnd) -> anyhow::Error {
    refusal_error(pid, &Refusal::from(end).into())
}

/// Builds the error for a process that could not be attached to: it names the process, the reason and the remedy, and
/// memory of memprof's that stays mapped there.
pub(crate) fn refusal_error(pid: u32, error: &AttachError) -> anyhow::Error {
    let name = read_proc_text(format!("/proc/{pid}/comm"));
    let process = match name {
        Ok(name) => format!("{pid} ({})", name.trim_end()),
        Err(_) => pid.to_string(),
    };
    let (error, left) = match error {
        AttachError::LeftMapped(error) => (&**error, format!("; {LEFT_MAPPED}")),
        error => (error, String::new()),
    };
    match error {
        AttachError::Refused(refusal) => {
            let remedy = memprof_attach::refusal_remedy(pid, refusal);
            let remedy = remedy.map(|remedy| format!("; {remedy}"));
            let remedy = remedy.unwrap_or_default();
            with_exit_code(
                refusal.exit_code(),
                format!("{process}: {refusal}{remedy}{left}"),
            )
        }
        AttachError::NotLoaded(message) => with_exit_code(
            UNAVAILABLE,
            format!("{process}: the plugin was not started: {message}{left}"),
        ),
        AttachError::NoInspector(reason) => {
            with_exit_code(UNAVAILABLE, format!("{process}: {reason}{left}"))
        }
        error => with_exit_code(FAILED, format!("{process}: {error}{left}")),
    }
}
