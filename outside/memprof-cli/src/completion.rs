//! Completion of arguments in a shell.

use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use memprof_messages::{MESSAGES, PLUGIN};

/// Returns a completer that offers the candidates that start with the typed text.
pub(crate) fn candidates_completer(candidates: Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| matching_candidates(&candidates, current))
}

/// Returns a completer for a target: it offers the pids and names of the hosts that run.
pub(crate) fn target_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| matching_candidates(&host_pids_and_names(), current))
}

/// Returns the pids and then the names of the running hosts, without names that a shell would split or interpret.
fn host_pids_and_names() -> Vec<String> {
    let hosts = memprof_host::running_hosts();
    let by_pid = hosts.iter().map(|host| host.pid.to_string());
    let by_name = hosts.iter().map(|host| host.info.name.clone());
    let is_plain = |name: &String| {
        name.chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    by_pid.chain(by_name).filter(is_plain).collect()
}

/// Returns a completer for an argument of `memprof msg`: a running host, the plugin `memory_profile`, or one of its
/// messages.
pub(crate) fn msg_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut names = host_pids_and_names();
        names.push(PLUGIN.to_owned());
        names.extend(MESSAGES.iter().map(|message| message.name.to_owned()));
        matching_candidates(&names, current)
    })
}

/// Returns the candidates that start with the typed text, in their order.
pub(crate) fn matching_candidates(
    candidates: &[String],
    current: &OsStr,
) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let fitting = candidates.iter().filter(|each| each.starts_with(&*current));
    fitting.map(CompletionCandidate::new).collect()
}
