//! Hosts whose sockets lie in no directory that is known here: found by the processes that have
//! the plugin.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::SocketCandidate;
use crate::socket_dir::abstract_name;
use crate::socket_dir::lock::lock_path;

/// The plugin's file, under whatever directory and prefix.
const PLUGIN: [&[u8]; 2] = [b"memory_profile.so", b"memory_profile.so (deleted)"];

/// `__SO_ACCEPTCON` in the flags of /proc/net/unix: the socket listens.
const LISTENS: u32 = 0x10000;

/// A process that has the plugin.
#[derive(Debug)]
pub(super) struct PluginProcess {
    pub(super) pid: u32,
    /// Where it may listen.
    pub(super) sockets: Vec<SocketCandidate>,
}

/// The processes with the plugin that this user may look into, without the `known` ones.
pub(super) fn find_with_plugin(known: &HashSet<u32>) -> Vec<PluginProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = pids.filter(|pid| !known.contains(pid) && *pid != std::process::id());
    others.filter_map(process).collect()
}

/// `None` where it has no plugin, or ended, or is not for this user to look into.
fn process(pid: u32) -> Option<PluginProcess> {
    let of = PathBuf::from(format!("/proc/{pid}"));
    let maps = fs::read(of.join("maps")).ok()?;
    let has_plugin = |line: &[u8]| PLUGIN.iter().any(|name| line.ends_with(name));
    if !maps.split(|byte| *byte == b'\n').any(has_plugin) {
        return None;
    }
    if !has_memprof_threads(&of) {
        // Asleep since it was detached, or loaded by a program that starts nothing in it.
        return None;
    }
    let owner = effective_uid(&fs::read_to_string(of.join("status")).ok()?)?;
    let held: HashSet<u64> = fs::read_dir(of.join("fd"))
        .ok()?
        .flatten()
        .filter_map(|entry| socket_inode(&fs::read_link(entry.path()).ok()?))
        .collect();
    // As the process sees them: it may be in a network namespace of its own.
    let table = fs::read_to_string(of.join("net/unix")).ok()?;
    let paths = table.lines().filter_map(|line| listening(line, &held));
    let sockets = paths
        .filter_map(|path| control_socket(&of, Path::new(path)))
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

/// All of them are called so (memprof-own).
fn has_memprof_threads(of: &Path) -> bool {
    let tasks = fs::read_dir(of.join("task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut names = tasks.map(|task| fs::read(task.path().join("comm")).unwrap_or_default());
    names.any(|name| name.starts_with(b"memprof-"))
}

fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn socket_inode(link: &Path) -> Option<u64> {
    let link = link.as_os_str().as_bytes().strip_prefix(b"socket:[")?;
    let number = link.strip_suffix(b"]")?;
    str::from_utf8(number).ok()?.parse().ok()
}

/// The path of a socket that is listened at and held by one of those inodes: `Num RefCount
/// Protocol Flags Type St Inode Path`.
fn listening<'a>(line: &'a str, held: &HashSet<u64>) -> Option<&'a str> {
    let mut rest = line;
    let mut columns = [""; 7];
    for column in &mut columns {
        (*column, rest) = rest.trim_start().split_once(' ')?;
    }
    let flags = u32::from_str_radix(columns[3], 16).ok()?;
    let inode = columns[6].parse().ok()?;
    (flags & LISTENS != 0 && held.contains(&inode)).then_some(rest)
}

/// What a process calls `path`, as it is called here, if it is a control socket: it has a lock beside it, or a name of
/// ours. A program listens at sockets of its own too, where a question of ours would be a command: kresd runs what it
/// is sent.
fn control_socket(of: &Path, path: &Path) -> Option<PathBuf> {
    // `@` stands for the NUL of an abstract name.
    if path.as_os_str().as_bytes().starts_with(b"@") {
        abstract_name::bytes(path)?;
        return Some(abstract_name::in_process_namespace(of, path));
    }
    let socket = resolve_from_here(of, path);
    lock_path(&socket).exists().then_some(socket)
}

/// A path of a process's, which may have another root.
fn resolve_from_here(of: &Path, path: &Path) -> PathBuf {
    let Ok(inside) = path.strip_prefix("/") else {
        return of.join("cwd").join(path);
    };
    let same = |link: &str| {
        let own = fs::read_link(Path::new("/proc/self").join(link));
        matches!((own, fs::read_link(of.join(link))), (Ok(own), Ok(its)) if own == its)
    };
    if same("ns/mnt") && same("root") {
        return path.to_owned();
    }
    of.join("root").join(inside)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_listening_socket_is_found_by_its_inode() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a host.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let held = fds.filter_map(|entry| socket_inode(&fs::read_link(entry.path()).ok()?));
        let held = held.collect();
        let table = fs::read_to_string("/proc/self/net/unix").unwrap();
        let found = |held| {
            let paths = table.lines().filter_map(|line| listening(line, held));
            paths.filter(|found| Path::new(found) == path).count()
        };
        assert_eq!(found(&held), 1);
        assert_eq!(found(&HashSet::new()), 0);
        let own = format!("/proc/{}", std::process::id());
        assert_eq!(resolve_from_here(Path::new(&own), &path), path);
    }

    #[test]
    fn a_socket_of_the_program_s_own_is_asked_nothing() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("control");
        let ours = place.path().join("7.sock");
        let _listeners = [&own, &ours].map(|path| UnixListener::bind(path).unwrap());
        let _lock = crate::socket_dir::lock::lock(&ours).unwrap();
        let of = Path::new("/proc/self");
        let check = |path: &str, expected: Option<&str>| {
            let socket = control_socket(of, Path::new(path));
            assert_eq!(socket.as_deref(), expected.map(Path::new));
        };
        check(own.to_str().unwrap(), None);
        check(ours.to_str().unwrap(), ours.to_str());
        check("@/tmp/dbus-x", None);
        check("@memprof-7-0f", Some("/proc/self/ns/net/@memprof-7-0f"));
    }

    #[test]
    fn lines_of_the_kernel_s_table() {
        let held = HashSet::from([24_801]);
        let check = |line: &str, expected| assert_eq!(listening(line, &held), expected, "{line}");
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
    fn the_effective_user_counts() {
        let status = "Name:\tx\nUid:\t0\t33\t0\t0\nGid:\t0\t0\t0\t0\n";
        assert_eq!(effective_uid(status), Some(33));
        assert_eq!(effective_uid("Name:\tx\n"), None);
    }
}
