//! `memprof ps`: lists the running hosts, and with `--all` processes that could be attached to.

mod bounded_work;
mod growth;
mod processes;
mod resident;
mod unexamined;

use std::path::PathBuf;
use std::time::Duration;

use memprof_host::client::Client;
use memprof_host::{DiscoveryScope, RunningHost, UnreachableHost, discover_hosts};
use memprof_messages::PLUGIN;
use serde::Serialize;

use crate::exit::Outcome;
use crate::output;
use crate::process_names::host_display_name;
use crate::target::NO_HOST_REMEDY;

/// Number of unreachable hosts that are listed individually.
const MAX_LISTED: usize = 10;

/// Output of `memprof ps --json`.
#[derive(Serialize)]
struct Listing {
    schema_version: u32,
    hosts: Vec<PsHostRow>,
    unreached: Vec<UnreachableRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<processes::ProcessRow>>,
    /// Pids of processes that were not examined in time, or whose status could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unexamined: Vec<u32>,
}

/// Row of a running host.
#[derive(Serialize)]
struct PsHostRow {
    pid: u32,
    name: String,
    command: String,
    socket: PathBuf,
    #[serde(flatten)]
    answer: PluginSummary,
}

/// Summary of a host's plugins.
#[derive(Default, Serialize)]
struct PluginSummary {
    plugins: Vec<String>,
    /// Allocators of the process, with kind and version.
    allocator: String,
    profiling: String,
}

/// A host that could not be reached.
#[derive(Serialize)]
struct UnreachableRow {
    pid: Option<u32>,
    place: PathBuf,
    reason: String,
}

/// Runs `memprof ps`: lists the running hosts, each of which is queried. With `all`, also lists processes that are no
/// hosts, and how they grow during `growth_time`; if that is `None`, during a default time.
pub(crate) fn run(all: bool, growth_time: Option<Duration>, json: bool) -> Outcome {
    let query = |client: &mut Client| {
        query_summary(client).unwrap_or_else(|error| PluginSummary {
            profiling: format!("{error:#}"),
            ..PluginSummary::default()
        })
    };
    // The list reads the maps of all processes, which need not be read for the hosts again.
    let processes = match all {
        true => Some(processes::list_processes()?),
        false => None,
    };
    let scope = match &processes {
        Some(processes) => DiscoveryScope::Among(&processes.plugin_pids),
        None => DiscoveryScope::AllProcesses,
    };
    let found = discover_hosts(scope, query);
    let mut listing = Listing {
        schema_version: 1,
        hosts: found.hosts.into_iter().map(host_row).collect(),
        unreached: found.unreachable.into_iter().map(unreachable_row).collect(),
        processes: None,
        unexamined: Vec::new(),
    };
    let mut other_user_count = 0;
    if let Some(mut processes) = processes {
        let hosts = listing.hosts.iter().map(|host| host.pid).collect();
        processes.mark_hosts(&hosts);
        processes.measure_growth(growth_time);
        listing.processes = Some(processes.rows);
        other_user_count = processes.other_user_count;
        listing.unexamined = processes.unexamined;
    }
    if json {
        output::print(&serde_json::to_string(&listing)?);
        return Ok(0.into());
    }
    match &listing.processes {
        Some(processes) => {
            let width = output::terminal_columns();
            output::print(&processes::format_table(processes, width));
            let note = width.and_then(|_| processes::refused_states_note(processes));
            note.iter().for_each(|note| output::note(note));
        }
        None if listing.hosts.is_empty() => {}
        None => output::print(&format_table(&listing.hosts)),
    }
    let missing = unexamined::unexamined_note(&listing.unexamined);
    missing.iter().for_each(|note| output::note(note));
    for one in listing.unreached.iter().take(MAX_LISTED) {
        output::note(&one.note_text());
    }
    match listing.unreached.len().saturating_sub(MAX_LISTED) {
        0 => {}
        more => output::note(&format!("{more} more were not reached; --json names them")),
    }
    if other_user_count > 0 {
        output::note(&format!(
            "{other_user_count} processes of other users are not listed; root sees them"
        ));
    }
    if listing.hosts.is_empty() && !all {
        output::print_stderr("no process with the plugin is running that this user can reach");
        output::print_stderr(NO_HOST_REMEDY);
    }
    Ok(0.into())
}

/// Returns the row of a host that replied.
fn host_row((host, answer): (RunningHost, PluginSummary)) -> PsHostRow {
    PsHostRow {
        pid: host.pid,
        name: host_display_name(host.pid, host.info.name),
        command: host.info.command,
        socket: host.socket,
        answer,
    }
}

/// Returns the row of a host that could not be reached.
fn unreachable_row(one: UnreachableHost) -> UnreachableRow {
    UnreachableRow {
        pid: one.pid,
        place: one.path,
        reason: one.reason,
    }
}

impl UnreachableRow {
    /// Returns the text of the note about a host that was not reached.
    fn note_text(&self) -> String {
        let pid = self.pid.map(|pid| format!("{pid}, ")).unwrap_or_default();
        format!(
            "not reached: {pid}{}: {}",
            self.place.display(),
            self.reason
        )
    }
}

/// Requests the ids of a host's plugins, and the status if `memory_profile` is among them. Fails if a request fails.
fn query_summary(client: &mut Client) -> anyhow::Result<PluginSummary> {
    let plugins = client.plugins()?.into_iter().map(|plugin| plugin.id);
    let plugins: Vec<_> = plugins.collect();
    if !plugins.iter().any(|id| id == PLUGIN) {
        return Ok(PluginSummary {
            plugins,
            profiling: "no memory_profile".to_owned(),
            ..PluginSummary::default()
        });
    }
    let status = client.status()?;
    let names = status.allocators.iter().map(ToString::to_string);
    Ok(PluginSummary {
        plugins,
        allocator: names.collect::<Vec<_>>().join(", "),
        profiling: status.profiling.to_string(),
    })
}

/// Returns one row for each process. A program with plugins in several modules has a control socket and a row for each:
/// of these, returns the row of `memory_profile`, else the first.
fn one_row_per_process(hosts: &[PsHostRow]) -> Vec<&PsHostRow> {
    let has_profile = |host: &PsHostRow| host.answer.plugins.iter().any(|id| id == PLUGIN);
    let mut rows: Vec<&PsHostRow> = Vec::new();
    for host in hosts {
        match rows.iter_mut().find(|row| row.pid == host.pid) {
            Some(row) if has_profile(host) && !has_profile(row) => *row = host,
            Some(_) => {}
            None => rows.push(host),
        }
    }
    rows
}

/// Formats the table of hosts, a row for each process.
fn format_table(hosts: &[PsHostRow]) -> String {
    let rows = one_row_per_process(hosts).into_iter().map(|host| {
        let answer = &host.answer;
        let texts = [
            &host.name,
            &answer.allocator,
            &answer.profiling,
            &host.command,
        ];
        let [name, allocator, profiling, command] = texts.map(Clone::clone);
        [
            format!("{:>7}", host.pid),
            name,
            allocator,
            profiling,
            command,
        ]
    });
    let heads = ["    PID", "NAME", "ALLOCATOR", "PROFILING", "COMMAND"];
    output::format_table(heads, &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_several_sockets_has_one_row() {
        let row = |(pid, socket, plugin): &(u32, &str, &str)| PsHostRow {
            pid: *pid,
            name: "redis-server".to_owned(),
            command: String::new(),
            socket: socket.into(),
            answer: PluginSummary {
                plugins: vec![(*plugin).to_owned()],
                ..PluginSummary::default()
            },
        };
        let check = |hosts: &[(u32, &str, &str)], expected: &[&str]| {
            let hosts: Vec<_> = hosts.iter().map(row).collect();
            let rows = one_row_per_process(&hosts).into_iter();
            let sockets: Vec<_> = rows.map(|row| row.socket.display().to_string()).collect();
            assert_eq!(sockets, expected);
        };
        check(&[], &[]);
        let (words, lines) = ((7, "/w", "words"), (7, "/l", "lines"));
        check(&[words, (7, "/p", PLUGIN), lines], &["/p"]);
        check(&[(7, "/p", PLUGIN), words], &["/p"]);
        check(&[words, lines], &["/w"]);
        check(
            &[words, (8, "/p", PLUGIN), (9, "/l", "lines")],
            &["/w", "/p", "/l"],
        );
    }
}
