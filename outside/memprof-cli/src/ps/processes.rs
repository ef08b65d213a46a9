//! Processes of this machine: which have loaded the plugin, which can be attached to, and reasons why others cannot.

use std::collections::HashSet;

use memprof_host::NO_CONTROL_SOCKET;
use memprof_ptrace::{ExaminedProcess, ListedProcess, Refusal};
use memprof_report::{SampleType, format_amount};
use serde::Serialize;

use crate::exit::{FAILED, with_exit_code};
use crate::output;

/// Processes that the user may see.
#[derive(Debug)]
pub(super) struct Processes {
    /// By resident memory in descending order.
    pub(super) rows: Vec<ProcessRow>,
    /// Number of processes of other users, which are not shown.
    pub(super) other_user_count: usize,
}

/// A row of `memprof ps --all`.
#[derive(Debug, Serialize)]
pub(super) struct ProcessRow {
    pid: u32,
    name: String,
    command: String,
    uid: u32,
    /// Resident memory in bytes.
    rss: u64,
    state: AttachState,
    /// Reason why attaching is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Remedy: how to make the process attachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Further note on attaching.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// Whether memprof can attach to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum AttachState {
    /// The plugin is active in it.
    Loaded,
    /// This user can attach to it.
    Attachable,
    /// Attaching is refused, for `reason`.
    Refused,
}

/// Note on a process whose seccomp filter can be read only while a thread is stopped.
const FILTER_NOTE: &str = "its seccomp filter is read at attach";

/// Lists the processes of /proc, the largest first. `hosts` are the pids of the hosts.
///
/// # Errors
/// /proc is not mounted.
pub(super) fn process_rows(hosts: HashSet<u32>) -> anyhow::Result<Processes> {
    let list = memprof_ptrace::list_processes();
    let list = list.map_err(|error| with_exit_code(FAILED, error.to_string()))?;
    let process_row = |process| process_row(process, &hosts);
    Ok(Processes {
        rows: list.processes.into_iter().map(process_row).collect(),
        other_user_count: list.other_user_count,
    })
}

/// Row of a process: its state, and the reason if attaching is refused.
fn process_row(process: ListedProcess, hosts: &HashSet<u32>) -> ProcessRow {
    let is_host = hosts.contains(&process.pid);
    let refusal = process.outcome.as_ref().err().filter(|_| !is_host);
    ProcessRow {
        pid: process.pid,
        state: match (is_host, refusal) {
            (true, _) => AttachState::Loaded,
            (false, None) => AttachState::Attachable,
            (false, Some(_)) => AttachState::Refused,
        },
        reason: refusal.map(Refusal::to_string),
        remedy: refusal.and_then(|refusal| memprof_attach::remedy(process.pid, refusal)),
        note: process
            .outcome
            .as_ref()
            .ok()
            .filter(|_| !is_host)
            .and_then(attach_note),
        name: process.status.name,
        command: process.command,
        uid: process.status.uids[1],
        rss: process.status.resident,
    }
}

/// Note on attaching to a process; `None` if there is nothing to note.
fn attach_note(examined: &ExaminedProcess) -> Option<&'static str> {
    match examined {
        _ if examined.has_plugin => Some(NO_CONTROL_SOCKET),
        _ if examined.has_filter() => Some(FILTER_NOTE),
        _ => None,
    }
}

impl ProcessRow {
    /// Text of the state, e.g. `refused: uses musl`.
    fn verdict(&self) -> String {
        match self.state {
            AttachState::Loaded => "loaded".to_owned(),
            AttachState::Attachable => match self.note {
                Some(note) => format!("attachable, {note}"),
                None => "attachable".to_owned(),
            },
            AttachState::Refused => {
                format!("refused: {}", self.reason.as_deref().unwrap_or_default())
            }
        }
    }
}

/// Formats the table of processes.
pub(super) fn format_table(rows: &[ProcessRow]) -> String {
    let rows = rows.iter().map(|row| {
        let rss = format_amount(row.rss.cast_signed(), SampleType::InuseSpace);
        [
            format!("{:>7}", row.pid),
            format!("{rss:>10}"),
            row.name.clone(),
            row.verdict(),
        ]
    });
    let heads = ["    PID", "       RSS", "NAME", "STATE"];
    output::table(heads, &rows.collect::<Vec<_>>())
}
