//! Finds hosts whose sockets are in no default directory, by the processes that have the plugin.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::SocketCandidate;
use crate::socket_dir::abstract_name;
use crate::socket_dir::lock::lock_path;

/// File names of the plugin in /proc/PID/maps, in any directory.
const PLUGIN_FILES: [&[u8]; 2] = [b"memory_profile.so", b"memory_profile.so (deleted)"];

/// Flag `__SO_ACCEPTCON` in /proc/net/unix: the socket listens.
const SO_ACCEPTCON: u32 = 0x10000;

/// A process that has the plugin.
#[derive(Debug)]
pub(super) struct PluginProcess {
    pub(super) pid: u32,
    /// Sockets at which it may serve.
    pub(super) sockets: Vec<SocketCandidate>,
}

/// Finds the processes with the plugin that this user may inspect, except the `known` ones and this one.
pub(super) fn find_with_plugin(known: &HashSet<u32>) -> Vec<PluginProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = pids.filter(|pid| !known.contains(pid) && *pid != std::process::id());
    others.filter_map(plugin_process).collect()
}

/// Inspects the process with this pid. `None` if it neither has the plugin nor serves at a control socket, or if this
/// user may not inspect it.
pub(super) fn find_by_pid(pid: u32) -> Option<PluginProcess> {
    let serves = |process: &PluginProcess| !process.sockets.is_empty();
    plugin_process(pid).or_else(|| find_control_sockets(pid).filter(serves))
}

/// Inspects a process. `None` if it has no plugin or no thread of memprof's, has ended, or this user may not inspect
/// it.
fn plugin_process(pid: u32) -> Option<PluginProcess> {
    let proc_dir = PathBuf::from(format!("/proc/{pid}"));
    let maps = fs::read(proc_dir.join("maps")).ok()?;
    let has_plugin = |line: &[u8]| PLUGIN_FILES.iter().any(|name| line.ends_with(name));
    if !maps.split(|byte| *byte == b'\n').any(has_plugin) {
        return None;
    }
    if !has_memprof_threads(&proc_dir) {
        // It was detached from, or a program loaded the plugin without starting it.
        return None;
    }
    find_control_sockets(pid)
}

/// Finds the control sockets of a process. `None` if it has ended, or this user may not inspect it.
fn find_control_sockets(pid: u32) -> Option<PluginProcess> {
    let proc_dir = PathBuf::from(format!("/proc/{pid}"));
    let owner = effective_uid(&fs::read_to_string(proc_dir.join("status")).ok()?)?;
    let held_inodes: HashSet<u64> = fs::read_dir(proc_dir.join("fd"))
        .ok()?
        .flatten()
        .filter_map(|entry| socket_inode(&fs::read_link(entry.path()).ok()?))
        .collect();
    // The process's table: it may be in another network namespace.
    let table = fs::read_to_string(proc_dir.join("net/unix")).ok()?;
    let paths = table
        .lines()
        .filter_map(|line| listening_path(line, &held_inodes));
    let sockets = paths
        .filter_map(|path| control_socket(&proc_dir, Path::new(path)))
        .map(|socket| SocketCandidate {
            socket,
            owner,
            process: Some(pid),
        });
    Some(PluginProcess {
        pid,
        sockets: sockets.collect(),
    })
}

/// Whether the process has a thread of memprof's: memprof-own names all of them `memprof-…`.
fn has_memprof_threads(proc_dir: &Path) -> bool {
    let tasks = fs::read_dir(proc_dir.join("task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut names = tasks.map(|task| fs::read(task.path().join("comm")).unwrap_or_default());
    names.any(|name| name.starts_with(b"memprof-"))
}

/// Returns the effective user id in the text of /proc/PID/status. `None` if the text contains none.
fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the inode of a socket in the link of /proc/PID/fd/N. `None` if it is no socket.
fn socket_inode(link: &Path) -> Option<u64> {
    let link = link.as_os_str().as_bytes().strip_prefix(b"socket:[")?;
    let number = link.strip_suffix(b"]")?;
    str::from_utf8(number).ok()?.parse().ok()
}

/// Returns the path in a line of /proc/net/unix (`Num RefCount Protocol Flags Type St Inode Path`). `None` if the
/// socket does not listen or has none of the inodes.
fn listening_path<'a>(line: &'a str, held_inodes: &HashSet<u64>) -> Option<&'a str> {
    let mut path = line;
    let mut columns = [""; 7];
    for column in &mut columns {
        (*column, path) = path.trim_start().split_once(' ')?;
    }
    let flags = u32::from_str_radix(columns[3], 16).ok()?;
    let inode = columns[6].parse().ok()?;
    (flags & SO_ACCEPTCON != 0 && held_inodes.contains(&inode)).then_some(path)
}

/// Converts the path of a process's socket to a path that is valid here. `None` if it is no control socket, which has a
/// lock beside it or a name of memprof's. Other sockets are the program's, where a request could be a command: kresd
/// runs the text that it receives.
fn control_socket(proc_dir: &Path, path: &Path) -> Option<PathBuf> {
    // `@` stands for the NUL of an abstract name (proc_pid_net(5)).
    if path.as_os_str().as_bytes().starts_with(b"@") {
        abstract_name::bytes(path)?;
        return Some(abstract_name::in_process_namespace(proc_dir, path));
    }
    let socket = resolve_from_here(proc_dir, path);
    lock_path(&socket).exists().then_some(socket)
}

/// Converts a path of a process, which may have another root or mount namespace, to one that is valid here.
fn resolve_from_here(proc_dir: &Path, path: &Path) -> PathBuf {
    let Ok(relative) = path.strip_prefix("/") else {
        return proc_dir.join("cwd").join(path);
    };
    let is_same = |link: &str| {
        let own = fs::read_link(Path::new("/proc/self").join(link));
        matches!((own, fs::read_link(proc_dir.join(link))), (Ok(own), Ok(other)) if own == other)
    };
    if is_same("ns/mnt") && is_same("root") {
        return path.to_owned();
    }
    proc_dir.join("root").join(relative)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn listening_socket_is_found_by_inode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a host.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let held_inodes = fds.filter_map(|entry| socket_inode(&fs::read_link(entry.path()).ok()?));
        let held_inodes = held_inodes.collect();
        let table = fs::read_to_string("/proc/self/net/unix").unwrap();
        let count = |held_inodes| {
            let paths = table
                .lines()
                .filter_map(|line| listening_path(line, held_inodes));
            paths
                .filter(|path_in_table| Path::new(path_in_table) == path)
                .count()
        };
        assert_eq!(count(&held_inodes), 1);
        assert_eq!(count(&HashSet::new()), 0);
        let own = format!("/proc/{}", std::process::id());
        assert_eq!(resolve_from_here(Path::new(&own), &path), path);
    }

    #[test]
    fn control_socket_excludes_programs_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("control");
        let control = directory.path().join("7.sock");
        let _listeners = [&other, &control].map(|path| UnixListener::bind(path).unwrap());
        let _lock = crate::socket_dir::lock::lock(&control).unwrap();
        let proc_dir = Path::new("/proc/self");
        let check = |path: &str, expected: Option<&str>| {
            let socket = control_socket(proc_dir, Path::new(path));
            assert_eq!(socket.as_deref(), expected.map(Path::new));
        };
        check(other.to_str().unwrap(), None);
        check(control.to_str().unwrap(), control.to_str());
        check("@/tmp/dbus-x", None);
        check("@memprof-7-0f", Some("/proc/self/ns/net/@memprof-7-0f"));
    }

    #[test]
    fn listening_path_parses_kernel_table() {
        let held_inodes = HashSet::from([24_801]);
        let check = |line: &str, expected| {
            assert_eq!(listening_path(line, &held_inodes), expected, "{line}")
        };
        let line = |flags, path| {
            format!("0000000000000000: 00000002 00000000 {flags} 0001 01 24801 {path}")
        };
        check(&line("00010000", "/run/h.sock"), Some("/run/h.sock"));
        check(&line("00010000", "/run/my h.sock"), Some("/run/my h.sock"));
        check(&line("00000000", "/run/h.sock"), None);
        check(&line("00010000", "@abstract"), Some("@abstract"));
        check(
            "0000000000000000: 00000002 00000000 00010000 0001 01 24801",
            None,
        );
        check(
            "Num       RefCount Protocol Flags    Type St Inode Path",
            None,
        );
    }

    #[test]
    fn effective_uid_is_second_number() {
        let status = "Name:\tx\nUid:\t0\t33\t0\t0\nGid:\t0\t0\t0\t0\n";
        assert_eq!(effective_uid(status), Some(33));
        assert_eq!(effective_uid("Name:\tx\n"), None);
    }
}
