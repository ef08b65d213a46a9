//! Completion of arguments in a shell.

use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use memprof_messages::{MESSAGES, PLUGIN};

/// Completes a word to those of the candidates that start with it.
pub(crate) fn complete_from(candidates: Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| matching_candidates(&candidates, current))
}

/// Completes a target to the running hosts, by pid and by name.
pub(crate) fn target_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| matching_candidates(&host_names(), current))
}

/// Returns the pids and names of the running hosts, without names that need quotes.
fn host_names() -> Vec<String> {
    let hosts = memprof_host::running_hosts();
    let by_pid = hosts.iter().map(|host| host.pid.to_string());
    let by_name = hosts.iter().map(|host| host.info.name.clone());
    // A shell would split another name, or interpret its characters.
    let is_plain = |name: &String| {
        name.chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    by_pid.chain(by_name).filter(is_plain).collect()
}

/// Completes a word of `memprof msg`: a running host, a plugin's name, or a message of `memory_profile`.
pub(crate) fn msg_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut names = host_names();
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
