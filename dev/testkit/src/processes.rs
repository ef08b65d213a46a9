//! Processes and their descendants, from proc(5).

use std::fs;

/// Process ids of the children of a process, their children, and so on.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = all_pids()
        .filter_map(|child| Some((child, parent_pid(child)?)))
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&each) = found.get(next) {
        let children = parents.iter().filter(|(_, parent_pid)| *parent_pid == each);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    found.split_off(1)
}

/// Whether the command line or the name of the process contains this text.
pub(crate) fn command_contains(pid: u32, text: &str) -> bool {
    ["cmdline", "comm"].iter().any(|file| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
    })
}

/// Whether the process exists and is no zombie.
pub(crate) fn is_running(pid: u32) -> bool {
    read_stat(pid).is_some_and(|fields| !fields.starts_with(['Z', 'X']))
}

fn all_pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent_pid(pid: u32) -> Option<u32> {
    read_stat(pid)?.split(' ').nth(1)?.parse().ok()
}

/// Fields of /proc/PID/stat from the state on. The name before them may have blanks and parentheses.
fn read_stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}
