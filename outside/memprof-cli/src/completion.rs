//! Completion of arguments in a shell.

use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use memprof_messages::{MESSAGES, PLUGIN};

/// Completes to one of the candidates.
pub(crate) fn complete_from(candidates: Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| matching_candidates(&candidates, current))
}

/// Completes a target to the running hosts, by pid and by name.
pub(crate) fn target_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let hosts = memprof_host::running_hosts();
        let by_pid = hosts.iter().map(|host| host.pid.to_string());
        let by_name = hosts.iter().map(|host| host.info.name.clone());
        // A shell would split another name, or interpret its characters.
        let is_plain = |name: &String| {
            name.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let names: Vec<_> = by_pid.chain(by_name).filter(is_plain).collect();
        matching_candidates(&names, current)
    })
}

/// Completes a plugin's name.
pub(crate) fn plugin_completer() -> ArgValueCompleter {
    complete_from(vec![PLUGIN.to_owned()])
}

/// Completes a message of `memory_profile`.
pub(crate) fn message_completer() -> ArgValueCompleter {
    complete_from(
        MESSAGES
            .iter()
            .map(|message| message.name.to_owned())
            .collect(),
    )
}

/// Candidates that start with the typed text, in their order.
pub(crate) fn matching_candidates(
    candidates: &[String],
    current: &OsStr,
) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let fitting = candidates.iter().filter(|each| each.starts_with(&*current));
    fitting.map(CompletionCandidate::new).collect()
}
