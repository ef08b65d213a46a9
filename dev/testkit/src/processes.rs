//! Processes, their threads and descendants, from proc(5).

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::polling::pause;

/// Waits until a child exits, and returns its exit status. `None` if it still runs after `timeout`.
///
/// # Errors
/// The child was waited for by other means.
pub fn wait_for_exit(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || start.elapsed() > timeout {
            return Ok(ended);
        }
        pause();
    }
}

/// Returns the rest of the line of /proc/PID/status that begins with `field`, such as `Uid:`.
///
/// # Errors
/// The process is gone, or has no such line.
pub fn status_field(pid: u32, field: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rest = status.lines().find_map(|line| line.strip_prefix(field));
    Ok(rest.with_context(|| field.to_owned())?.trim().to_owned())
}

/// Returns the first number in the line of /proc/PID/status that begins with `field`, in KiB for memory.
///
/// # Errors
/// The process is gone, has no such line, or the line begins with no number.
pub fn status_number(pid: u32, field: &str) -> Result<u64> {
    let rest = status_field(pid, field)?;
    let number = rest.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("{field} {rest}"))
}

/// Returns the directory in /proc and the name of each thread of a process.
///
/// # Errors
/// The process is gone.
pub fn threads(pid: u32) -> io::Result<Vec<(PathBuf, String)>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let tasks = tasks.filter_map(|task| {
        // A thread may end at any time.
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((task.path(), name.trim_end().to_owned()))
    });
    Ok(tasks.collect())
}

/// Returns the names of the threads that memprof's plugin has created in a process.
///
/// # Errors
/// The process is gone.
pub fn plugin_threads(pid: u32) -> io::Result<Vec<String>> {
    let names = threads(pid)?.into_iter().map(|(_, name)| name);
    Ok(names.filter(|name| name.starts_with("memprof-")).collect())
}

/// Returns the number of open descriptors of a process.
///
/// # Errors
/// The process is gone.
pub fn descriptor_count(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Returns the pids of the processes that the main thread has forked, oldest first.
///
/// # Errors
/// The process is gone.
pub fn children(pid: u32) -> io::Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let pids = children.split_whitespace().flat_map(str::parse);
    Ok(pids.collect())
}

/// Returns the pids of the children of a process, their children, and so on, parents first, without its own. Empty if
/// there are none.
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

/// Returns whether the command line or the name of the process contains this text.
pub(crate) fn command_contains(pid: u32, text: &str) -> bool {
    ["cmdline", "comm"].iter().any(|file| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
    })
}

/// Returns whether the process exists and is no zombie.
pub(crate) fn is_running(pid: u32) -> bool {
    read_stat(pid).is_some_and(|fields| !fields.starts_with(['Z', 'X']))
}

/// Iterates over the pids of all processes in /proc; none if it cannot be read.
fn all_pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the pid of the parent, which is the field after the state; `None` if the process has ended.
fn parent_pid(pid: u32) -> Option<u32> {
    read_stat(pid)?.split(' ').nth(1)?.parse().ok()
}

/// Reads the fields of /proc/PID/stat from the state on. The name before them may have blanks and parentheses. `None`
/// if the process is gone.
fn read_stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}
