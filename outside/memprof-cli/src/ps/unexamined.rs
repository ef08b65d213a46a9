//! Processes that were not examined: in time, or at all.

use std::time::Duration;

use super::bounded_work::WorkLimits;

/// Time in which all processes are examined. The kernel may wait for a process's lock, or for a file system that does not
/// answer.
pub(super) const LIST_TIME: WorkLimits = WorkLimits {
    stuck: Duration::from_millis(500),
    silent: Duration::from_secs(10),
    total: Duration::from_secs(25),
};
/// Most pids in the note on processes that were not examined.
const MAX_NOTED: usize = 10;

/// Returns the note on processes that were not examined; `None` if all were.
pub(super) fn unexamined_note(pids: &[u32]) -> Option<String> {
    if pids.is_empty() {
        return None;
    }
    let mut names: Vec<_> = pids.iter().take(MAX_NOTED).map(u32::to_string).collect();
    if pids.len() > MAX_NOTED {
        names.push("…".to_owned());
    }
    let noun = if pids.len() == 1 {
        "process"
    } else {
        "processes"
    };
    Some(format!(
        "not examined, as they or the machine do not answer in time, or /proc cannot be read: {} {noun} (pid {})",
        pids.len(),
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexamined_processes_are_counted_and_some_named() {
        let check = |pids: &[u32], expected: Option<&str>| {
            let note = unexamined_note(pids);
            let note = note.map(|note| note.split_once(": ").unwrap().1.to_owned());
            assert_eq!(note.as_deref(), expected);
        };
        check(&[], None);
        check(&[7], Some("1 process (pid 7)"));
        check(
            &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
            Some("11 processes (pid 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …)"),
        );
    }
}
