//! The processes of this machine: which hold the plugin, which could, and why others could not.

use std::collections::HashSet;

use memprof_host::SILENT;
use memprof_ptrace::{ExaminedProcess, ListedProcess, Refusal};
use memprof_report::{SampleType, amount};
use serde::Serialize;

use crate::exit::{FAILED, with_exit_code};
use crate::output::one_line;

/// The processes that are shown.
#[derive(Debug)]
pub(super) struct Processes {
    /// By resident memory, the largest first.
    pub(super) rows: Vec<ProcessRow>,
    /// The number of processes of other users, of which nothing is shown.
    pub(super) of_others: usize,
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
    /// Why it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What makes the process attachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// What else to know before attaching.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum AttachState {
    /// The plugin runs in it.
    Loaded,
    /// This user can attach to it.
    Attachable,
    /// Attaching is refused, for `reason`.
    Refused,
}

const FILTERED: &str = "its seccomp filter is read at attach";

/// Lists the processes of /proc, the largest first.
///
/// # Errors
/// There is no /proc.
pub(super) fn processes(hosts: HashSet<u32>) -> anyhow::Result<Processes> {
    let survey = memprof_ptrace::list_processes();
    let survey = survey.map_err(|error| with_exit_code(FAILED, error.to_string()))?;
    let row = |process| row(process, &hosts);
    Ok(Processes {
        rows: survey.processes.into_iter().map(row).collect(),
        of_others: survey.of_others,
    })
}

fn row(process: ListedProcess, hosts: &HashSet<u32>) -> ProcessRow {
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
            .and_then(note),
        name: process.status.name,
        command: process.command,
        uid: process.status.uids[1],
        rss: process.status.resident,
    }
}

fn note(examined: &ExaminedProcess) -> Option<&'static str> {
    match examined {
        _ if examined.has_plugin => Some(SILENT),
        _ if examined.has_filter() => Some(FILTERED),
        _ => None,
    }
}

impl ProcessRow {
    /// `refused: uses musl`.
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

pub(super) fn table(rows: &[ProcessRow]) -> String {
    let size = |row: &ProcessRow| amount(row.rss.cast_signed(), SampleType::InuseSpace);
    let line = |pid: &str, rss: &str, name: &str, state: &str| {
        // The kernel keeps 15 bytes of a name.
        format!("{pid:>7}  {rss:>10}  {name:<15}  {state}")
    };
    let mut lines = vec![line("PID", "RSS", "NAME", "STATE")];
    lines.extend(rows.iter().map(|row| {
        let pid = row.pid.to_string();
        line(
            &pid,
            &size(row),
            &one_line(&row.name),
            &one_line(&row.verdict()),
        )
    }));
    lines.join("\n")
}
