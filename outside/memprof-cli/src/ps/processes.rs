//! Processes of this machine: what they are, how fast they grow, and what memprof can do with each.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use memchr::memmem::find;
use memprof_ptrace::{ExaminedProcess, ListResult, ListedProcess, ProcessLister, Refusal};
use nix::unistd::{Uid, User};
use serde::Serialize;

use super::bounded_work::work_within_limits;
use super::resident::short_size;
use super::unexamined::LIST_TIME;
use crate::container::Container;
use crate::exit::{FAILED, with_exit_code};
use crate::output;
use crate::program_kind::ProgramKinds;
use crate::quantities::format_size;

/// Processes that the user may see.
#[derive(Debug)]
pub(super) struct Processes {
    /// By resident memory in descending order.
    pub(super) rows: Vec<ProcessRow>,
    /// Number of processes of other users, which are not shown.
    pub(super) other_user_count: usize,
    /// Pids of the processes that were not examined in [`LIST_TIME`], or whose status could not be read.
    pub(super) unexamined: Vec<u32>,
    /// Pids of the processes that may have the plugin.
    pub(super) plugin_pids: Vec<u32>,
}

/// Row of a process, or what it is instead.
#[derive(Debug)]
enum RowResult {
    Row {
        row: Box<ProcessRow>,
        /// Whether it may have the plugin.
        has_plugin: bool,
    },
    OtherUser,
    /// The pid of a process whose status could not be read.
    Unreadable(u32),
    Omitted,
}

/// A row of `memprof ps --all`.
#[derive(Debug, Serialize)]
pub(super) struct ProcessRow {
    pub(super) pid: u32,
    name: String,
    command: String,
    uid: u32,
    /// Name of the user, or the number if there is none.
    user: String,
    /// Resident memory in bytes.
    pub(super) rss: u64,
    /// Time at which `rss` was read.
    #[serde(skip)]
    pub(super) examined: Instant,
    /// Growth of the resident memory; `None` if the process has ended meanwhile.
    pub(super) growth_bytes_per_s: Option<i64>,
    /// Language of the program, or of its interpreter.
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<&'static str>,
    allocators: Vec<&'static str>,
    /// Name or id of its container.
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    state: AttachState,
    /// Commands that work on it, as far as that is known without stopping it.
    can: &'static [&'static str],
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

/// File of the plugin in /proc/PID/maps, in any directory.
const PLUGIN_NAME: &[u8] = b"memory_profile.so";
/// Commands that work on a process to which memprof can attach.
const ALL_COMMANDS: &[&str] = &["record", "leaks", "holders", "ledger"];

/// Note on a process in which the plugin is, and does not answer.
const PLUGIN_NOTE: &str =
    "the plugin is in it, since an earlier attachment or without a control socket";
/// Note on a process whose seccomp filter can be read only while a thread is stopped.
const FILTER_NOTE: &str = "its seccomp filter is read at attach";

/// Lists the processes of /proc, the largest first; hosts are marked later ([`Processes::mark_hosts`]). Of those not
/// examined in [`LIST_TIME`], and of those whose status cannot be read, only the pids are listed.
///
/// # Errors
/// /proc is not mounted.
pub(super) fn list_processes() -> anyhow::Result<Processes> {
    let failed = |error: Refusal| with_exit_code(FAILED, error.to_string());
    let lister = ProcessLister::new().map_err(failed)?;
    let pids = lister.list_pids().map_err(failed)?;
    let listed = work_within_limits(LIST_TIME, pids, || {
        let lister = lister.clone();
        let (mut kinds, mut users) = (ProgramKinds::default(), HashMap::new());
        move |pid| {
            // The resident memory is read at the start of the examination, which may take long.
            let examined = Instant::now();
            match lister.examine(pid) {
                ListResult::Process(process) => RowResult::Row {
                    has_plugin: find(&process.maps, PLUGIN_NAME).is_some(),
                    row: Box::new(process_row(*process, examined, &mut kinds, &mut users)),
                },
                ListResult::OtherUser => RowResult::OtherUser,
                ListResult::Unreadable => RowResult::Unreadable(pid),
                ListResult::Omitted => RowResult::Omitted,
            }
        }
    });
    let mut processes = Processes {
        rows: Vec::new(),
        other_user_count: 0,
        unexamined: listed.unfinished,
        plugin_pids: Vec::new(),
    };
    for result in listed.results {
        match result {
            RowResult::Row { row, has_plugin } => {
                processes.plugin_pids.extend(has_plugin.then_some(row.pid));
                processes.rows.push(*row);
            }
            RowResult::OtherUser => processes.other_user_count += 1,
            RowResult::Unreadable(pid) => processes.unexamined.push(pid),
            RowResult::Omitted => {}
        }
    }
    let by_size = |row: &ProcessRow| (std::cmp::Reverse(row.rss), row.pid);
    processes.rows.sort_by_key(by_size);
    Ok(processes)
}

impl Processes {
    /// Marks the rows of the processes in `hosts` as loaded: all commands work on them, and notes on attaching are
    /// dropped.
    pub(super) fn mark_hosts(&mut self, hosts: &HashSet<u32>) {
        for row in self.rows.iter_mut().filter(|row| hosts.contains(&row.pid)) {
            row.state = AttachState::Loaded;
            row.can = ALL_COMMANDS;
            (row.reason, row.remedy, row.note) = (None, None, None);
        }
    }
}

/// Returns the row of a process that is no host: its state, and the reason if attaching is refused. `kinds` and `users`
/// remember what was found for processes before.
fn process_row(
    process: ListedProcess,
    examined: Instant,
    kinds: &mut ProgramKinds,
    users: &mut HashMap<u32, String>,
) -> ProcessRow {
    let pid = process.pid;
    let refusal = process.outcome.as_ref().err();
    // The effective user of real, effective, saved and file system user (proc(5)).
    let uid = process.status.uids[1];
    let kind = kinds.kind_for_maps(pid, &process.maps);
    let state = match refusal {
        None => AttachState::Attachable,
        Some(_) => AttachState::Refused,
    };
    ProcessRow {
        pid,
        state,
        can: match state {
            AttachState::Loaded | AttachState::Attachable => ALL_COMMANDS,
            AttachState::Refused if process.is_readable => &["leaks", "holders", "ledger"],
            AttachState::Refused if !process.maps.is_empty() => &["ledger"],
            AttachState::Refused => &[],
        },
        reason: refusal.map(Refusal::to_string),
        remedy: refusal.and_then(|refusal| memprof_attach::refusal_remedy(pid, refusal)),
        note: process.outcome.as_ref().ok().and_then(attach_note),
        name: process.status.name,
        command: process.command,
        uid,
        user: users.entry(uid).or_insert_with(|| user_name(uid)).clone(),
        rss: process.status.resident,
        examined,
        growth_bytes_per_s: None,
        language: kind.language,
        allocators: kind.allocators,
        container: Container::parse(&String::from_utf8_lossy(&process.cgroups))
            .map(|container| container.name()),
    }
}

/// Returns the name of a user; the number if there is none.
fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// Returns the note on attaching to a process; `None` if there is nothing to note.
fn attach_note(examined: &ExaminedProcess) -> Option<&'static str> {
    match examined {
        _ if examined.has_plugin => Some(PLUGIN_NOTE),
        _ if examined.has_seccomp_filter() => Some(FILTER_NOTE),
        _ => None,
    }
}

impl ProcessRow {
    /// Returns the text of the state, e.g. `refused: uses musl`, with what works in spite of that.
    fn state_text(&self) -> String {
        match self.state {
            AttachState::Loaded => "loaded".to_owned(),
            AttachState::Attachable => match self.note {
                Some(note) => format!("attachable, {note}"),
                None => "attachable".to_owned(),
            },
            AttachState::Refused => {
                let reason = self.reason.as_deref().unwrap_or_default();
                match self.can {
                    [] => format!("refused: {reason}"),
                    can => format!("refused: {reason} (works: {})", can.join(", ")),
                }
            }
        }
    }

    /// Returns the state in one word, for a terminal.
    fn short_state(&self) -> &'static str {
        match (self.state, self.can) {
            (AttachState::Loaded, _) => "loaded",
            (AttachState::Attachable, _) => "attachable",
            (AttachState::Refused, ["leaks", ..]) => "read-only",
            (AttachState::Refused, _) => "refused",
        }
    }

    /// Returns the allocators, joined by commas; `-` if none is known.
    fn allocator_text(&self) -> String {
        match &*self.allocators {
            [] => "-".to_owned(),
            names => names.join(","),
        }
    }

    /// Returns the command line; if the process has cleared it, its name in brackets, as ps(1) does. For a terminal
    /// (`is_terminal`), leaves out the directory of the program, so that the program's name is not cut off.
    fn command_text(&self, is_terminal: bool) -> String {
        let command = self.command.as_str();
        let end = command.find(' ').unwrap_or(command.len());
        match command[..end].rfind('/') {
            _ if command.is_empty() => format!("[{}]", self.name),
            Some(slash) if is_terminal && command.starts_with('/') => {
                command[slash + 1..].to_owned()
            }
            _ => command.to_owned(),
        }
    }

    /// Returns the growth with its sign, formatted by `size`: `+1.2 MiB/s`. `-` if there is none, or it is not known.
    fn growth_text(&self, size: impl Fn(u64) -> String) -> String {
        match self.growth_bytes_per_s {
            None | Some(0) => "-".to_owned(),
            Some(growth) => {
                let sign = if growth > 0 { "+" } else { "-" };
                format!("{sign}{}/s", size(growth.unsigned_abs()))
            }
        }
    }
}

/// Widest cells of a terminal's table but the last one's.
const TERMINAL_LIMITS: [usize; 9] = [7, 8, 6, 9, 10, 9, 10, 12, usize::MAX];
/// Index of the column of containers, in both tables.
const CONTAINER: usize = 7;

/// Formats the table of processes: in short for a terminal of `width` columns, completely if `width` is `None`.
pub(super) fn format_table(rows: &[ProcessRow], width: Option<usize>) -> String {
    let container = |row: &ProcessRow| row.container.clone().unwrap_or_default();
    let language = |row: &ProcessRow| row.language.unwrap_or("-").to_owned();
    match width {
        Some(_) => {
            let heads = [
                "    PID",
                "USER",
                "   RSS",
                "   GROWTH",
                "LANGUAGE",
                "ALLOCATOR",
                "STATE",
                "CONTAINER",
                "COMMAND",
            ];
            let cells = rows.iter().map(|row| {
                [
                    format!("{:>7}", row.pid),
                    row.user.clone(),
                    format!("{:>6}", short_size(row.rss)),
                    format!("{:>9}", row.growth_text(short_size)),
                    language(row),
                    row.allocator_text(),
                    row.short_state().to_owned(),
                    container(row),
                    row.command_text(true),
                ]
            });
            format_cells(rows, width, heads, cells.collect())
        }
        None => {
            let heads = [
                "    PID",
                "USER",
                "       RSS",
                "      GROWTH",
                "LANGUAGE",
                "ALLOCATOR",
                "STATE",
                "CONTAINER",
                "COMMAND",
            ];
            let cells = rows.iter().map(|row| {
                [
                    format!("{:>7}", row.pid),
                    row.user.clone(),
                    format!("{:>10}", format_size(row.rss)),
                    format!("{:>12}", row.growth_text(format_size)),
                    language(row),
                    row.allocator_text(),
                    row.state_text(),
                    container(row),
                    row.command_text(false),
                ]
            });
            format_cells(rows, None, heads, cells.collect())
        }
    }
}

/// Formats a table of `cells`, without the column of containers if no process of `rows` is in one. `width` is the
/// number of columns of the terminal; if it is `None`, nothing is cut.
fn format_cells(
    rows: &[ProcessRow],
    width: Option<usize>,
    heads: [&str; 9],
    mut cells: Vec<[String; 9]>,
) -> String {
    if rows.iter().any(|row| row.container.is_some()) {
        return output::format_table_within(width, TERMINAL_LIMITS, heads, &cells);
    }
    let kept = |index: usize| if index < CONTAINER { index } else { index + 1 };
    let heads: [&str; 8] = std::array::from_fn(|index| heads[kept(index)]);
    let limits: [usize; 8] = std::array::from_fn(|index| TERMINAL_LIMITS[kept(index)]);
    let cells: Vec<[String; 8]> = cells
        .iter_mut()
        .map(|row| std::array::from_fn(|index| std::mem::take(&mut row[kept(index)])))
        .collect();
    output::format_table_within(width, limits, heads, &cells)
}

/// Returns the note that explains `read-only` and `refused`, which a terminal's table shows without a reason. `None` if
/// all processes can be attached to.
pub(super) fn refused_states_note(rows: &[ProcessRow]) -> Option<String> {
    let refused = rows.iter().find(|row| row.state == AttachState::Refused)?;
    Some(format!(
        "read-only: leaks, holders and ledger work; `memprof doctor {}` says why no more, and of any other process",
        refused.pid
    ))
}
