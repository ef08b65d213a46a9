//! Arguments that every command about a process has: the process itself, `KEY=VALUE`, durations.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::process_names::{parse_named_pid, pids_with_name};
use crate::process_tree::common_ancestor;
use crate::{container, target};

/// The error of a text that does not stand for one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessNameError {
    text: String,
    reason: String,
}

impl fmt::Display for ProcessNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.text, self.reason)
    }
}

impl Error for ProcessNameError {}

/// Returns the error of [`parse_process`] by which clap refused an argument. `None` if clap failed for another reason.
pub(crate) fn process_name_error(error: &clap::Error) -> Option<&ProcessNameError> {
    error.source()?.downcast_ref()
}

/// Parses a process: its pid, its name, `NAME/PID`, `container:NAME` or `container:NAME/PID`. A pid alone is accepted
/// even if no such process runs.
///
/// # Errors
/// No process or several have that name.
pub(crate) fn parse_process(text: &str) -> Result<u32, ProcessNameError> {
    resolve_process(text).map_err(|reason| ProcessNameError {
        text: text.to_owned(),
        reason,
    })
}

/// Like [`parse_process`], but the error is the reason alone. A host's name comes before the names of other processes.
fn resolve_process(text: &str) -> Result<u32, String> {
    if let Ok(pid) = text.parse() {
        return Ok(pid);
    }
    if let Some(container) = text.strip_prefix("container:") {
        return container::find_process_in_container(container);
    }
    if let Some(pid) = target::pid_by_host_name(text) {
        return Ok(pid);
    }
    if let Some(pid) = parse_named_pid(text) {
        return pid;
    }
    match *pids_with_name(text) {
        [] => Err("no process has that name; `memprof ps --all` lists them".to_owned()),
        [pid] => Ok(pid),
        ref pids => {
            let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
            Err(format!(
                "several processes have that name, give a pid: {}",
                pids.join(", ")
            ))
        }
    }
}

/// Like [`parse_process`], but of several processes with that name, takes the one of which all others are descendants.
///
/// # Errors
/// No process has that name, or none of the processes is the ancestor of all others.
pub(crate) fn parse_tree_root(text: &str) -> Result<u32, ProcessNameError> {
    parse_process(text).or_else(|error| common_ancestor(&pids_with_name(text)).ok_or(error))
}

/// Parses a duration: `30s`, `5m`, `1h 30m`; a number alone counts seconds.
///
/// # Errors
/// The text is no duration; the message shows the form.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_duration(text)
            .map_err(|_| "expected a duration, such as 30s, 5m or 1h".to_owned()),
    }
}

/// Splits positional arguments into the target, which is the first one unless that is `key=value`, and the rest. The
/// target is `None` if there is none.
pub(crate) fn split_target(args: &[String]) -> (Option<&str>, &[String]) {
    match args {
        [target, rest @ ..] if !is_key_value(target) => (Some(target), rest),
        args => (None, args),
    }
}

/// Returns whether an argument is `key=value`; a path with a `=` in it is not.
pub(crate) fn is_key_value(argument: &str) -> bool {
    let key = argument.split_once('=').map_or("", |(key, _)| key);
    !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_argument_without_a_key_is_the_target() {
        let check = |args: &[&str], expected: (Option<&str>, &[&str])| {
            let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
            let (target, rest) = split_target(&args);
            assert_eq!(
                (target, rest.iter().map(String::as_str).collect()),
                (expected.0, expected.1.to_vec())
            );
        };
        check(&[], (None, &[]));
        check(&["4711"], (Some("4711"), &[]));
        check(&["web", "for=10m"], (Some("web"), &["for=10m"]));
        check(&["keep.count=3"], (None, &["keep.count=3"]));
        check(
            &["/run/a=b.sock", "id=1"],
            (Some("/run/a=b.sock"), &["id=1"]),
        );
        check(&["=x"], (Some("=x"), &[]));
    }

    #[test]
    fn duration_without_unit_counts_seconds() {
        let check = |text, expected: Option<u64>| {
            let expected = expected.map(Duration::from_secs);
            let form = "expected a duration, such as 30s, 5m or 1h".to_owned();
            assert_eq!(parse_duration(text), expected.ok_or(form), "{text}");
        };
        check("30", Some(30));
        check("5m", Some(300));
        check("-1", None);
        check("soon", None);
        check("5 fortnights", None);
        check("", None);
    }

    #[test]
    fn process_is_named_by_pid_or_name() {
        let sleeper = || {
            let mut command = std::process::Command::new("/bin/sleep");
            command.arg("1000").spawn().unwrap()
        };
        let check =
            |text: &str, expected: Result<u32, String>| assert_eq!(resolve_process(text), expected);
        check("4711", Ok(4711));
        let none = "no process has that name; `memprof ps --all` lists them";
        check("memprof-no-such-name", Err(none.to_owned()));
        let mut one = sleeper();
        check(&format!("sleep/{}", one.id()), Ok(one.id()));
        let other = format!("process {} is not called cat", one.id());
        check(&format!("cat/{}", one.id()), Err(other));
        let mut other = sleeper();
        let several = parse_process("sleep").unwrap_err().to_string();
        assert!(
            several.starts_with("\"sleep\": several processes have that name"),
            "{several}"
        );
        for child in [&mut one, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
