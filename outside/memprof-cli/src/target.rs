//! Selection of the host that a command talks to.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use memprof_host::client::{Client, ClientError};
use memprof_host::{DiscoveryScope, RunningHost, UnreachableHost, discover_hosts, running_hosts};
use memprof_messages::PLUGIN;
use memprof_ptrace::{Halt, read_proc_text};

use crate::completion;
use crate::container;
use crate::exit::{UNREACHABLE, USAGE, with_exit_code};
use crate::process_names::{has_name, parse_named_pid, pids_with_name};

/// Help of the arguments of a command that also examines a process without the plugin.
pub(crate) const ANY_PROCESS_HELP: &str = "The process, also one without the plugin: a pid, a name, container:NAME or a \
    socket's path; not needed while only one host runs. Then the message's arguments, listed below if it has any";

// Options that select the host and the form of the reply. No doc comment: clap would add it to the help of each
// command with these options.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The process, in place of the argument TARGET.
    #[arg(short, long, value_name = "TARGET", add = completion::target_completer())]
    pub(crate) target: Option<String>,
    /// Print JSON, the whole reply; one that is no JSON becomes the object's `text`, and bytes stay as they are.
    #[arg(long)]
    pub(crate) json: bool,
    /// Wait this long for the reply, for example 30s [default: 10s for what a host answers at once, else 5m].
    #[arg(long, value_name = "DURATION", value_parser = crate::process_arg::parse_duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Remedy if no host is running.
pub(crate) const NO_HOST_REMEDY: &str = "load the plugin with `memprof attach PID` into a running process, or start one with \
    `memprof run -- PROGRAM`; for a process of another user, run memprof as that user or as root";

/// Connects to the host of `memory_profile` that the arguments name, with the timeout in `args`. `first` is a target in
/// front of the other arguments; `None` if there is none. If no target is given, connects to the only running host.
pub(crate) fn connect_to_host(args: &TargetArgs, first: Option<&str>) -> anyhow::Result<Client> {
    connect_to_plugin(args, first, PLUGIN)
}

/// Like [`connect_to_host`], but connects to the socket of `plugin` if the process has several.
pub(crate) fn connect_to_plugin(
    args: &TargetArgs,
    first: Option<&str>,
    plugin: &str,
) -> anyhow::Result<Client> {
    let target = match (first, args.target.as_deref()) {
        (Some(first), Some(option)) => {
            let text = format!("two targets, {first} and -t {option}: give one");
            return Err(with_exit_code(USAGE, text));
        }
        (first, option) => first.or(option),
    };
    find_and_connect(target, plugin, |socket| match args.timeout {
        None => Client::connect(socket),
        Some(timeout) => Client::connect_within(socket, timeout),
    })
}

/// Connects to the host of `memory_profile` that `target` names: a socket's path, a pid, or a name. If `target` is
/// `None`, connects to the only running host.
pub(crate) fn connect(target: Option<&str>) -> anyhow::Result<Client> {
    find_and_connect(target, PLUGIN, Client::connect)
}

/// Finds the host that `target` names, or if it is `None` the only running one, and connects to its socket by
/// `connect`. If nothing listens at the socket any more, searches for the host once more.
fn find_and_connect(
    target: Option<&str>,
    plugin: &str,
    connect: impl Fn(&Path) -> Result<Client, ClientError>,
) -> anyhow::Result<Client> {
    let socket = find_socket(target, plugin)?;
    let connected = match connect(&socket) {
        Err(ClientError::Unreachable(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            connect(&find_socket(target, plugin)?)
        }
        connected => connected,
    };
    connected.with_context(|| socket.display().to_string())
}

/// Returns the path of a socket: `target` itself if it is one, else the socket of the host that `target` names. If
/// `target` is `None`, returns the socket of the only running host with `plugin`.
fn find_socket(target: Option<&str>, plugin: &str) -> anyhow::Result<PathBuf> {
    match target.and_then(socket_path) {
        Some(path) => Ok(path),
        None => Ok(find_host(target, plugin)?.socket),
    }
}

/// Returns the pid of a host in this process's pid namespace. If the host is not visible there, returns the pid in the
/// host's own namespace, which it reports itself.
pub(crate) fn host_pid(client: &mut Client) -> anyhow::Result<u32> {
    match client.peer().pid {
        Some(pid) => Ok(pid),
        None => Ok(client.host_info()?.pid),
    }
}

/// Returns the pid of the running host with that name. `None` if there is none, or if several have it.
pub(crate) fn pid_by_host_name(name: &str) -> Option<u32> {
    let mut hosts = running_hosts();
    hosts.retain(|host| host.matches(name));
    match &*hosts {
        [host] => Some(host.pid),
        _ => None,
    }
}

/// Interprets a target as the path of a socket. A target with a slash is a path, unless it has the form `NAME/PID` and
/// no such file exists. Without a slash, it is a path if a socket of that name exists in the working directory; a
/// number is always a pid. `None` if the target is not a path.
pub(crate) fn socket_path(target: &str) -> Option<PathBuf> {
    let is_socket = |path: &Path| path.metadata().is_ok_and(|m| m.file_type().is_socket());
    if target.starts_with("container:") {
        return None;
    }
    let path = Path::new(target);
    let is_path = match target.contains('/') {
        true => parse_named_pid(target).is_none() || path.exists(),
        false => parse_pid(target).is_none() && is_socket(path),
    };
    is_path.then(|| path.to_owned())
}

/// Parses a target as a pid; `None` if it is not a number.
fn parse_pid(target: &str) -> Option<u32> {
    target.parse().ok()
}

/// Finds the host that `target` names, or if it is `None` the only running one. For a pid, `NAME/PID` or
/// `container:NAME`, searches only the sockets of that process. For a name, searches the hosts in the usual socket
/// directories first, then all processes. If the process has several sockets, chooses that of `plugin`.
pub(crate) fn find_host(target: Option<&str>, plugin: &str) -> anyhow::Result<RunningHost> {
    if let Some(container) = target.and_then(|target| target.strip_prefix("container:")) {
        let pid = container::find_process_in_container(container);
        let pid = pid.map_err(|error| with_exit_code(UNREACHABLE, error))?;
        return find_host(Some(&pid.to_string()), plugin);
    }
    if let Some(named) = target.and_then(parse_named_pid) {
        let pid = named.map_err(|error| with_exit_code(UNREACHABLE, error))?;
        return find_host(Some(&pid.to_string()), plugin);
    }
    if let Some(pid) = target.and_then(parse_pid)
        && Path::new("/proc").join(pid.to_string()).exists()
    {
        let (host, unreachable) = host_of_plugin(pid, plugin);
        if let Some(host) = host {
            return Ok(host);
        }
        if let Some(halt) = Halt::for_pid(pid) {
            let name =
                inspect_process(pid).map_or_else(String::new, |(_, name, _)| format!(" ({name})"));
            return Err(with_exit_code(UNREACHABLE, format!("{pid}{name}: {halt}")));
        }
        return choose_host(Vec::new(), &unreachable, target);
    }
    let mut hosts = running_hosts();
    let mut unreachable = Vec::new();
    let is_match = |host: &RunningHost| target.is_none_or(|target| host_has_name(host, target));
    if let Some(pid) = common_pid(hosts.iter().filter(|host| is_match(host)))
        && let (Some(host), _) = host_of_plugin(pid, plugin)
    {
        return Ok(host);
    }
    if !hosts.iter().any(is_match) {
        let everywhere = discover_hosts(DiscoveryScope::AllProcesses, |_| ());
        hosts = everywhere
            .hosts
            .into_iter()
            .map(|(host, ())| host)
            .collect();
        unreachable = everywhere.unreachable;
    }
    choose_host(hosts, &unreachable, target)
}

/// Returns whether `name` is the name of a host, or one of the names of its process (see [`has_name`]).
fn host_has_name(host: &RunningHost, name: &str) -> bool {
    host.matches(name) || has_name(host.pid, name)
}

/// Finds the control socket of process `pid` at which `plugin` answers, else its first one: two plugins in a foreign
/// program have a socket each. `None` if no socket could be reached. Also returns the sockets that could not be
/// reached.
fn host_of_plugin(pid: u32, plugin: &str) -> (Option<RunningHost>, Vec<UnreachableHost>) {
    let found = discover_hosts(DiscoveryScope::Process(pid), |_| ());
    let hosts = found.hosts.into_iter().map(|(host, ())| host);
    let mut hosts: Vec<_> = hosts.filter(|host| host.pid == pid).collect();
    let has_plugin = |host: &RunningHost| {
        let plugins = Client::connect(&host.socket).and_then(|mut client| client.plugins());
        plugins.is_ok_and(|plugins| plugins.iter().any(|info| info.id == plugin))
    };
    let index = match hosts.len() {
        0 => return (None, found.unreachable),
        1 => 0,
        _ => hosts.iter().position(has_plugin).unwrap_or(0),
    };
    (Some(hosts.swap_remove(index)), found.unreachable)
}

/// Returns the pid if there are several hosts, which are all sockets of one process. `None` otherwise.
fn common_pid<'a>(hosts: impl Iterator<Item = &'a RunningHost>) -> Option<u32> {
    let pids: Vec<_> = hosts.map(|host| host.pid).collect();
    let is_same = pids.len() > 1 && pids.iter().all(|pid| *pid == pids[0]);
    is_same.then(|| pids[0])
}

/// Chooses the host that `target` names; `None` fits every host. Fails unless exactly one matches. `unreachable`
/// explains in the error why a host is missing.
fn choose_host(
    mut hosts: Vec<RunningHost>,
    unreachable: &[UnreachableHost],
    target: Option<&str>,
) -> anyhow::Result<RunningHost> {
    let all = host_list_text(&hosts);
    if let Some(target) = target {
        hosts.retain(|host| host_has_name(host, target));
    }
    match (hosts.len(), target) {
        (1, _) => Ok(hosts.remove(0)),
        (0, None) => Err(with_exit_code(
            UNREACHABLE,
            format!(
                "no process with the plugin is running that this user can reach: {NO_HOST_REMEDY}"
            ),
        )),
        (0, Some(target)) => Err(with_exit_code(
            UNREACHABLE,
            no_host_message(target, &all, unreachable),
        )),
        (_, None) => Err(with_exit_code(
            USAGE,
            format!("several hosts are running, choose one by its pid or name: {all}"),
        )),
        (_, Some(target)) => {
            let those = host_list_text(&hosts);
            Err(with_exit_code(
                USAGE,
                format!("several hosts are called {target:?}, give a pid: {those}"),
            ))
        }
    }
}

/// Returns the error text for a target that matches no host: what is known of the process with its pid or name.
/// `running` is the list of the hosts as text.
fn no_host_message(target: &str, running: &str, unreachable: &[UnreachableHost]) -> String {
    let process = parse_pid(target).or_else(|| pids_with_name(target).first().copied());
    let Some((pid, name, owner)) = process.and_then(inspect_process) else {
        return match parse_pid(target) {
            Some(pid) => format!("no process {pid} is running; hosts: {running}"),
            None => format!("no host is named {target:?}; running: {running}"),
        };
    };
    let own = rustix::process::geteuid().as_raw();
    let known = unreachable.iter().find(|one| one.pid == Some(pid));
    match known {
        Some(one) => format!("{pid} ({name}) was not reached: {}", one.reason),
        None if own != 0 && own != owner => {
            let owner = match owner {
                0 => "root".to_owned(),
                uid => format!("uid {uid}"),
            };
            format!("{pid} ({name}) belongs to {owner}: run memprof as that user, or as root")
        }
        None => {
            format!("{pid} ({name}) runs without the plugin: `memprof attach {pid}` loads it")
        }
    }
}

/// Returns the pid, name and owner's user id of a process; `None` if it has ended.
fn inspect_process(pid: u32) -> Option<(u32, String, u32)> {
    let proc_dir = PathBuf::from(format!("/proc/{pid}"));
    let name = read_proc_text(proc_dir.join("comm")).ok()?;
    Some((
        pid,
        name.trim_end().to_owned(),
        proc_dir.metadata().ok()?.uid(),
    ))
}

/// Returns the pids and names of hosts as a text, each process once: `4711 (nginx), 4712 (redis)`; `none` without
/// hosts. `hosts` must be sorted by pid.
fn host_list_text(hosts: &[RunningHost]) -> String {
    let one = |host: &RunningHost| format!("{} ({})", host.pid, host.info.name);
    let mut names: Vec<_> = hosts.iter().map(one).collect();
    names.dedup();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use memprof_host::protocol::HostInfo;

    use super::*;

    fn host(pid: u32, name: &str, command: &str) -> RunningHost {
        let info = HostInfo {
            pid,
            name: name.to_owned(),
            command: command.to_owned(),
            version: String::new(),
            started: 0,
        };
        RunningHost {
            socket: PathBuf::from(format!("/run/{pid}.sock")),
            pid,
            info,
        }
    }

    #[test]
    fn targets_select_hosts() {
        let hosts = || {
            vec![
                host(7, "web", "/usr/bin/server --x"),
                host(8, "db", "/usr/bin/server"),
            ]
        };
        let check = |hosts: Vec<RunningHost>, target: Option<&str>, expected: &str| {
            let found = match choose_host(hosts, &[], target) {
                Ok(host) => host.pid.to_string(),
                Err(error) => error.to_string(),
            };
            assert_eq!(found, expected);
        };
        check(hosts(), Some("7"), "7");
        check(hosts(), Some("db"), "8");
        assert_eq!(
            host_list_text(&[host(8, "db", ""), host(8, "db", "")]),
            "8 (db)"
        );
        check(
            hosts(),
            Some("server"),
            "several hosts are called \"server\", give a pid: 7 (web), 8 (db)",
        );
        check(
            hosts(),
            Some("no such"),
            "no host is named \"no such\"; running: 7 (web), 8 (db)",
        );
        check(
            hosts(),
            Some("4294967295"),
            "no process 4294967295 is running; hosts: 7 (web), 8 (db)",
        );
        check(
            hosts(),
            None,
            "several hosts are running, choose one by its pid or name: 7 (web), 8 (db)",
        );
        check(vec![host(7, "web", "")], None, "7");
        let none = format!(
            "no process with the plugin is running that this user can reach: {NO_HOST_REMEDY}"
        );
        check(vec![], None, &none);
    }

    #[test]
    fn missing_host_error_names_the_reason() {
        let own = std::process::id();
        let (_, name, _) = inspect_process(own).unwrap();
        let check = |unreached: &[UnreachableHost], expected: &str| {
            let error = choose_host(vec![], unreached, Some(&own.to_string())).unwrap_err();
            assert_eq!(error.to_string(), format!("{own} ({name}) {expected}"));
        };
        let remedy = format!("runs without the plugin: `memprof attach {own}` loads it");
        check(&[], &remedy);
        let silent = UnreachableHost {
            pid: Some(own),
            path: "/run/h.sock".into(),
            reason: "it did not answer within 3s".to_owned(),
            is_silent: true,
        };
        check(&[silent], "was not reached: it did not answer within 3s");
    }

    #[test]
    fn socket_path_may_be_relative() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let directory = dir.path().file_name().unwrap().to_str().unwrap();
        let path = format!("{directory}.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let found = socket_path(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, Some(PathBuf::from(&path)));
        assert_eq!(socket_path(&path), None);
        assert_eq!(socket_path("/no/such"), Some(PathBuf::from("/no/such")));
        assert_eq!(socket_path("Cargo.toml"), None);
    }
}
