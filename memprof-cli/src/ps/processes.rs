//! The processes of this machine: which hold the plugin, which could, and why others could not.

use std::collections::HashSet;

use memprof_host::SILENT;
use memprof_ptrace::{Examined, Refusal, Surveyed};
use memprof_report::{SampleType, amount};
use serde::Serialize;

use crate::exit::{FAILED, coded};
use crate::output::one_line;

/// The processes that are shown.
#[derive(Debug)]
pub(super) struct Processes {
    /// By resident memory, the largest first.
    pub(super) rows: Vec<Row>,
    /// The number of processes of other users, of which nothing is shown.
    pub(super) of_others: usize,
}

/// A row of `memprof ps --all`.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pid: u32,
    name: String,
    command: String,
    uid: u32,
    /// Resident memory in bytes.
    rss: u64,
    state: State,
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
enum State {
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
    let survey = memprof_ptrace::survey();
    let survey = survey.map_err(|error| coded(FAILED, error.to_string()))?;
    let row = |process| row(process, &hosts);
    Ok(Processes {
        rows: survey.processes.into_iter().map(row).collect(),
        of_others: survey.of_others,
    })
}

fn row(process: Surveyed, hosts: &HashSet<u32>) -> Row {
    let is_host = hosts.contains(&process.pid);
    let refusal = process.outcome.as_ref().err().filter(|_| !is_host);
    Row {
        pid: process.pid,
        state: match (is_host, refusal) {
            (true, _) => State::Loaded,
            (false, None) => State::Attachable,
            (false, Some(_)) => State::Refused,
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

fn note(examined: &Examined) -> Option<&'static str> {
    match examined {
        _ if examined.has_plugin => Some(SILENT),
        _ if examined.has_filter() => Some(FILTERED),
        _ => None,
    }
}

impl Row {
    /// `refused: uses musl`.
    fn verdict(&self) -> String {
        match self.state {
            State::Loaded => "loaded".to_owned(),
            State::Attachable => match self.note {
                Some(note) => format!("attachable, {note}"),
                None => "attachable".to_owned(),
            },
            State::Refused => {
                format!("refused: {}", self.reason.as_deref().unwrap_or_default())
            }
        }
    }
}

pub(super) fn table(rows: &[Row]) -> String {
    let size = |row: &Row| amount(row.rss.cast_signed(), SampleType::InuseSpace);
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
