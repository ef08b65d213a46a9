//! The processes below another one, as /proc tells (proc(5)).

use std::fs;

/// The children of a process, theirs, and so on.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = all()
        .filter_map(|child| Some((child, parent(child)?)))
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&each) = found.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == each);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    found.split_off(1)
}

/// Whether its command line or its name has this text.
pub(crate) fn is_called(pid: u32, text: &str) -> bool {
    ["cmdline", "comm"].iter().any(|file| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
    })
}

/// Whether it runs; a zombie does not.
pub(crate) fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.split(' ').nth(1)?.parse().ok()
}

/// State, parent, and so on. The name before them may have blanks and parentheses.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}
