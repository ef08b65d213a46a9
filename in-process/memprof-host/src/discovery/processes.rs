//! Finds hosts whose sockets are in no default directory, by the processes that have the plugin.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use memprof_own::{boot_time, clock_ticks_per_second};

use super::SocketCandidate;
use crate::socket_dir::abstract_name;
use crate::socket_dir::lock::lock_file_path;

/// File names of the plugin in /proc/PID/maps, in any directory.
const PLUGIN_FILES: [&[u8]; 2] = [b"memory_profile.so", b"memory_profile.so (deleted)"];

/// Name of the thread that starts the plugin, of `adapters/delayed_start.rs`.
const START_THREAD: &[u8] = b"memprof-start";

/// Name of the thread that accepts connections, of `control/mod.rs`.
const ACCEPT_THREAD: &[u8] = b"memprof-control";

/// Variable that `memprof run` sets for the plugin (`adapters/preload.rs`).
const RUN_MARKER: &[u8] = b"MEMPROF_RUN=1";

/// Flag `__SO_ACCEPTCON` in /proc/net/unix: the socket listens.
const SO_ACCEPTCON: u32 = 0x10000;

/// Longest wait for plugins that are being started.
const START_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A process that has the plugin, or serves at a control socket.
#[derive(Debug)]
pub(super) struct PluginProcess {
    pub(super) pid: u32,
    /// Sockets at which it may serve.
    pub(super) sockets: Vec<SocketCandidate>,
    /// Whether the thread that starts the plugin runs.
    pub(super) is_starting: bool,
}

/// Lists the pids of all processes that /proc shows. Empty if /proc cannot be read.
pub(super) fn list_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.collect()
}

/// Finds the processes with the plugin among `pids` that this user may inspect, except the `known` ones and this one.
/// Waits up to 5 s for all plugins that are being started.
pub(super) fn find_processes_with_plugin(pids: &[u32], known: &HashSet<u32>) -> Vec<PluginProcess> {
    let pids = pids.iter().copied();
    let others = pids.filter(|pid| !known.contains(pid) && *pid != std::process::id());
    let found: Vec<_> = others.filter_map(inspect_process).collect();
    let deadline = Instant::now() + START_TIMEOUT;
    let started = |process| wait_for_plugin_start(process, deadline);
    found.into_iter().filter_map(started).collect()
}

/// Inspects the process with this pid. Waits up to 5 s for a plugin that is being started, also by a `memprof run` that
/// is about to execute the program. `None` if it neither runs the plugin nor serves at a control socket, has ended, or
/// may not be inspected by this user.
pub(super) fn find_plugin_process(pid: u32) -> Option<PluginProcess> {
    let serves = |process: &PluginProcess| !process.sockets.is_empty();
    let deadline = Instant::now() + START_TIMEOUT;
    let mut process = inspect_process(pid);
    while process.is_none() && is_recently_run_by_memprof(pid) && Instant::now() < deadline {
        thread::sleep(POLL_INTERVAL);
        process = inspect_process(pid);
    }
    let process = process.and_then(|process| wait_for_plugin_start(process, deadline));
    process.or_else(|| find_control_sockets(pid).filter(serves))
}

/// Returns whether a process started in the last 5 s, and is `memprof run`, was executed by it, or is just executing a
/// program. False if this user may not read the process's files in /proc.
fn is_recently_run_by_memprof(pid: u32) -> bool {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let age = process_age_seconds(&String::from_utf8_lossy(&read("stat")));
    if age.is_none_or(|age| age > START_TIMEOUT.as_secs()) {
        return false;
    }
    let command = read("cmdline");
    if command.is_empty() {
        // The command line is empty while a program is being executed, and in a zombie, which has no program.
        return fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    }
    is_memprof_run_command(&command)
        || read("environ")
            .split(|byte| *byte == 0)
            .any(|variable| variable == RUN_MARKER)
}

/// Returns whether a command line, as in /proc/PID/cmdline, is of `memprof run`.
fn is_memprof_run_command(command: &[u8]) -> bool {
    let mut words = command.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next();
    name == Some(b"memprof") && words.any(|word| word == b"run")
}

/// Returns the seconds since the start of a process, given the text of its /proc/PID/stat (proc(5)). `None` if the text
/// is malformed.
fn process_age_seconds(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    // Field 22; the first word after the name is field 3.
    let ticks: u64 = after_name.split_whitespace().nth(19)?.parse().ok()?;
    let now = boot_time().as_secs();
    Some(now.saturating_sub(ticks / clock_ticks_per_second()))
}

/// Inspects a process again and again, until the thread that starts the plugin has opened a socket or has ended, at
/// most until `deadline`. Usually that takes 100 ms (`adapters/delayed_start.rs`). `None` if the process has ended, or
/// does not run the plugin any more.
fn wait_for_plugin_start(mut process: PluginProcess, deadline: Instant) -> Option<PluginProcess> {
    while process.is_starting && process.sockets.is_empty() && Instant::now() < deadline {
        thread::sleep(POLL_INTERVAL);
        process = inspect_process(process.pid)?;
    }
    Some(process)
}

/// Inspects a process. `None` if it has not mapped the plugin, has no thread of memprof's or has ended, or if this user
/// may not inspect it.
fn inspect_process(pid: u32) -> Option<PluginProcess> {
    let proc_dir = PathBuf::from(format!("/proc/{pid}"));
    let maps = fs::read(proc_dir.join("maps")).ok()?;
    let has_plugin = |line: &[u8]| PLUGIN_FILES.iter().any(|name| line.ends_with(name));
    if !maps.split(|byte| *byte == b'\n').any(has_plugin) {
        return None;
    }
    let threads: Vec<_> = memprof_threads(&proc_dir).collect();
    if threads.is_empty() {
        // The process was detached from, or a program loaded the plugin without starting it.
        return None;
    }
    Some(PluginProcess {
        is_starting: threads.iter().any(|thread| thread.name == START_THREAD),
        ..find_control_sockets(pid)?
    })
}

/// Finds the control sockets of a process, which may have none. Does not find out whether the plugin is being started:
/// `is_starting` is false. `None` if the process has ended, or if this user may not inspect it.
fn find_control_sockets(pid: u32) -> Option<PluginProcess> {
    let proc_dir = PathBuf::from(format!("/proc/{pid}"));
    // Names of processes, and of sockets that others made, may have bytes that are not UTF-8.
    let read = |file: &str| {
        let text = fs::read(proc_dir.join(file)).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    let owner = parse_effective_uid(&read("status")?)?;
    let mut held_inodes = socket_inodes(&proc_dir).ok()?;
    let acceptor = memprof_threads(&proc_dir).find(|thread| thread.name == ACCEPT_THREAD);
    if let Some(MemprofThread { directory, .. }) = acceptor {
        // The acceptor's thread may have a descriptor table of its own, with sockets that the process's table lacks.
        held_inodes.extend(socket_inodes(&directory).unwrap_or_default());
    }
    // The table of the process, not of this one: it may be in another network namespace.
    let table = read("net/unix")?;
    let paths = table
        .lines()
        .filter_map(|line| listening_path(line, &held_inodes));
    let sockets = paths
        .filter_map(|path| control_socket_path(&proc_dir, Path::new(path)))
        .map(|socket| SocketCandidate {
            socket,
            owner,
            process: Some(pid),
        });
    Some(PluginProcess {
        pid,
        sockets: sockets.collect(),
        is_starting: false,
    })
}

/// A thread of memprof's in another process.
struct MemprofThread {
    name: Vec<u8>,
    /// /proc/PID/task/TID.
    directory: PathBuf,
}

/// Finds a process's threads that are memprof's: memprof-own names all of them `memprof-…`.
fn memprof_threads(proc_dir: &Path) -> impl Iterator<Item = MemprofThread> {
    let tasks = fs::read_dir(proc_dir.join("task")).into_iter().flatten();
    let threads = tasks.flatten().map(|task| MemprofThread {
        name: fs::read(task.path().join("comm"))
            .unwrap_or_default()
            .trim_ascii_end()
            .to_vec(),
        directory: task.path(),
    });
    threads.filter(|thread| thread.name.starts_with(b"memprof-"))
}

/// Returns the inodes of the sockets that a process or thread has open. `directory` is its directory, /proc/PID or
/// /proc/PID/task/TID. Fails if this user may not list its descriptors.
fn socket_inodes(directory: &Path) -> io::Result<HashSet<u64>> {
    let entries = fs::read_dir(directory.join("fd"))?.flatten();
    let inode = |entry: fs::DirEntry| socket_inode(&fs::read_link(entry.path()).ok()?);
    Ok(entries.filter_map(inode).collect())
}

/// Returns the effective user id in the text of /proc/PID/status. `None` if the text contains none.
fn parse_effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // The real id is the first number, the effective id the second.
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the inode in `socket:[INODE]`, the text of a link /proc/PID/fd/N. `None` if the descriptor is no socket.
fn socket_inode(link: &Path) -> Option<u64> {
    let link = link.as_os_str().as_bytes().strip_prefix(b"socket:[")?;
    let number = link.strip_suffix(b"]")?;
    str::from_utf8(number).ok()?.parse().ok()
}

/// Returns the path in a line of /proc/net/unix (`Num RefCount Protocol Flags Type St Inode Path`). `None` if the
/// socket does not listen, has no path, or its inode is not in `held_inodes`.
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
fn control_socket_path(proc_dir: &Path, path: &Path) -> Option<PathBuf> {
    // `@` stands for the NUL of an abstract name (proc_pid_net(5)).
    if path.as_os_str().as_bytes().starts_with(b"@") {
        abstract_name::abstract_name_bytes(path)?;
        return Some(abstract_name::path_in_process_namespace(proc_dir, path));
    }
    let socket = resolve_process_path(proc_dir, path);
    lock_file_path(&socket).exists().then_some(socket)
}

/// Converts a path of a process, which may have another root or mount namespace, to one that is valid here. A relative
/// path starts at the process's working directory.
fn resolve_process_path(proc_dir: &Path, path: &Path) -> PathBuf {
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
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    #[test]
    fn run_command_is_of_the_file_memprof() {
        let check =
            |command: &[u8], expected| assert_eq!(is_memprof_run_command(command), expected);
        check(b"memprof\0run\0--\0cat\0", true);
        check(b"/usr/bin/memprof\0-q\0run\0cat\0", true);
        check(b"/opt/my-memprof\0run\0", false);
        check(b"memprof\0ps\0", false);
        check(b"", false);
    }

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
        assert_eq!(resolve_process_path(Path::new(&own), &path), path);
    }

    #[test]
    fn socket_name_that_is_not_utf8_hides_no_control_socket() {
        let directory = tempfile::tempdir().unwrap();
        let control = directory.path().join("7.sock");
        let _control = UnixListener::bind(&control).unwrap();
        let _lock = crate::socket_dir::lock::lock_socket_path(&control).unwrap();
        let name = [b"\xff-memprof-", std::process::id().to_string().as_bytes()].concat();
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _other = UnixListener::bind_addr(&address).unwrap();
        let found = find_control_sockets(std::process::id()).unwrap();
        let mut sockets = found.sockets.iter();
        assert!(sockets.any(|each| each.socket == control));
    }

    #[test]
    fn control_socket_excludes_programs_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("control");
        let control = directory.path().join("7.sock");
        let _listeners = [&other, &control].map(|path| UnixListener::bind(path).unwrap());
        let _lock = crate::socket_dir::lock::lock_socket_path(&control).unwrap();
        let proc_dir = Path::new("/proc/self");
        let check = |path: &str, expected: Option<&str>| {
            let socket = control_socket_path(proc_dir, Path::new(path));
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
    fn age_of_this_process_is_small() {
        let stat = |path: &str| fs::read_to_string(path).unwrap();
        let own = process_age_seconds(&stat("/proc/self/stat")).unwrap();
        assert!(own <= process_age_seconds(&stat("/proc/1/stat")).unwrap());
        assert_eq!(process_age_seconds("7 (x) S 1"), None);
    }

    #[test]
    fn effective_uid_is_second_number() {
        let status = "Name:\tx\nUid:\t0\t33\t0\t0\nGid:\t0\t0\t0\t0\n";
        assert_eq!(parse_effective_uid(status), Some(33));
        assert_eq!(parse_effective_uid("Name:\tx\n"), None);
    }
}
