//! Discovers running hosts by their control sockets.
//!
//! The caller may be root, and a host may belong to any user. So only directories that belong to the user whose sockets
//! they contain are read, a socket must have been opened by that user, all hosts are queried in parallel, and each has
//! a timeout.

mod parallel;
mod processes;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{Client, ClientError, Deadline, Peer};
use crate::protocol::HostInfo;
use crate::socket_dir::{self, SocketDir, lock};
use parallel::parallel_map;
use processes::PluginProcess;

/// Timeout of [`discover_hosts`] for one host to identify itself and to answer the query.
const HOST_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for all hosts together.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Remedy for a plugin without a control socket.
pub const CONTROL_SOCKET_REMEDY: &str = "set `control=on` in its configuration (in Redis `control on`), or attach again if \
    memprof detached from it";

/// Reason and remedy for a process whose plugin is being started for longer than a command waits.
const STILL_STARTING: &str = "its plugin is still being started; try again";

/// A host that responded.
#[derive(Clone, Debug)]
pub struct RunningHost {
    /// Path of its control socket.
    pub socket: PathBuf,
    /// Id of its process in this PID namespace. In a container, the host may report another one.
    pub pid: u32,
    /// Identity that the host reports.
    pub info: HostInfo,
}

impl RunningHost {
    /// Returns whether `target` is this host's pid, its name, or its program's file name.
    pub fn matches(&self, target: &str) -> bool {
        let info = &self.info;
        let program = program_of_command(&info.command);
        let file_name = program.rsplit('/').next().unwrap_or_default();
        self.pid.to_string() == target || info.name == target || file_name == target
    }
}

/// Returns the program of a command line as a host reports it ([`HostInfo::command`]): the text up to the first blank
/// that has no backslash before it, without these backslashes.
fn program_of_command(command: &str) -> String {
    let mut blanks = command.match_indices(' ').map(|(index, _)| index);
    let end = blanks.find(|index| !command[..*index].ends_with('\\'));
    let program = &command[..end.unwrap_or(command.len())];
    program.replace("\\ ", " ")
}

/// A possible host that was not reached.
#[derive(Clone, Debug)]
pub struct UnreachableHost {
    /// Id of its process, if it is known.
    pub pid: Option<u32>,
    /// Path of its socket, or a directory of sockets.
    pub path: PathBuf,
    /// Reason for which it was not reached.
    pub reason: String,
    /// Whether it is there but did not answer in time: it is stopped, or busy.
    pub is_silent: bool,
}

/// Extent of a discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryScope<'a> {
    /// Sockets in the default directories.
    SocketDirs,
    /// Also sockets elsewhere of processes that have the plugin.
    AllProcesses,
    /// Like `AllProcesses`, for a caller that has read the maps of all: only these are inspected, which may have the plugin.
    Among(&'a [u32]),
    /// Sockets of the process with this pid, wherever they are. No other process is inspected or queried.
    Process(u32),
}

/// All hosts that this user may send messages to.
#[derive(Debug)]
pub struct Discovery<T> {
    /// Hosts in the order of their pids, each with the result of the query.
    pub hosts: Vec<(RunningHost, T)>,
    /// Hosts that did not respond, and directories that were not read.
    pub unreachable: Vec<UnreachableHost>,
}

/// Times after which hosts are not waited for.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    host: Duration,
    /// End of the whole discovery.
    deadline: Deadline,
}

/// A socket at which a host may listen.
#[derive(Clone, Debug)]
struct SocketCandidate {
    socket: PathBuf,
    /// Id of the user who must have opened it.
    owner: u32,
    /// Id of the process that holds it, if it was found by its process.
    process: Option<u32>,
}

/// Queries the hosts in the default directories, and returns those that respond to this user, in the order of their
/// pids. Takes at most 10 s.
pub fn running_hosts() -> Vec<RunningHost> {
    let hosts = discover_hosts(DiscoveryScope::SocketDirs, |_| ()).hosts;
    hosts.into_iter().map(|(host, ())| host).collect()
}

/// Finds the host with this pid whose socket has its default name. Queries no other host. `None` if none responds
/// within 3 s.
pub fn find_host_by_pid(pid: u32) -> Option<RunningHost> {
    let candidates = default_sockets_of_process(pid);
    let results = parallel_map(&candidates, |candidate| {
        connect_candidate(candidate, HOST_TIMEOUT)
    });
    let mut hosts = results.into_iter().flatten().map(|(_, host)| host);
    hosts.find(|host| host.pid == pid)
}

/// Returns the existing sockets with the default names of process `pid`, in all default directories.
fn default_sockets_of_process(pid: u32) -> Vec<SocketCandidate> {
    let dirs = reachable_socket_dirs().into_iter();
    // A directory that is missing or not to be trusted is left out.
    let owned = dirs.filter_map(|dir| Some((dir.owner().ok()??, dir.directory)));
    let owned = owned.flat_map(|(owner, directory)| {
        socket_dir::socket_names(pid).map(move |name| SocketCandidate {
            socket: directory.join(name),
            owner,
            process: None,
        })
    });
    owned
        .filter(|candidate| candidate.socket.exists())
        .collect()
}

/// Queries all hosts in `scope` in parallel, each for at most 3 s, all for at most 10 s. Returns the hosts that
/// responded with the results of `query`, in the order of their pids, and those that could not be reached. If no
/// process listens at one of the sockets, also removes all such sockets from this user's default directories.
pub fn discover_hosts<T: Send>(
    scope: DiscoveryScope<'_>,
    query: impl Fn(&mut Client) -> T + Sync,
) -> Discovery<T> {
    discover_hosts_within(HOST_TIMEOUT, scope, query)
}

/// Queries all hosts in `scope` in parallel, each for at most `timeout`, all for at most 10 s. Returns the hosts that
/// responded with the results of `query`, in the order of their pids, and those that could not be reached. If no
/// process listens at one of the sockets, also removes all such sockets from this user's default directories.
pub fn discover_hosts_within<T: Send>(
    timeout: Duration,
    scope: DiscoveryScope<'_>,
    query: impl Fn(&mut Client) -> T + Sync,
) -> Discovery<T> {
    let deadline = Deadline::after(TOTAL_TIMEOUT);
    let mut discovery = Discovery {
        hosts: Vec::new(),
        unreachable: Vec::new(),
    };
    let (candidates, own) = match scope {
        DiscoveryScope::Process(pid) => (default_sockets_of_process(pid), Vec::new()),
        DiscoveryScope::SocketDirs | DiscoveryScope::AllProcesses | DiscoveryScope::Among(_) => {
            socket_candidates(&mut discovery.unreachable)
        }
    };
    let timeouts = Timeouts {
        host: timeout,
        deadline,
    };
    let any_is_abandoned = discovery.query_candidates(&candidates, timeouts, &query);
    let known_pids: HashSet<u32> = discovery.hosts.iter().map(|(host, _)| host.pid).collect();
    let processes = match scope {
        DiscoveryScope::SocketDirs => Vec::new(),
        DiscoveryScope::AllProcesses => {
            processes::find_processes_with_plugin(&processes::list_pids(), &known_pids)
        }
        DiscoveryScope::Among(pids) => processes::find_processes_with_plugin(pids, &known_pids),
        DiscoveryScope::Process(pid) if known_pids.contains(&pid) => Vec::new(),
        DiscoveryScope::Process(pid) => processes::find_plugin_process(pid).into_iter().collect(),
    };
    discovery.query_processes(processes, &candidates, timeouts, &query);
    if any_is_abandoned {
        own.iter()
            .for_each(|directory| lock::remove_abandoned_files(directory));
    }
    discovery.hosts.sort_by_key(|(host, _)| host.pid);
    discovery
}

impl<T: Send> Discovery<T> {
    /// Queries all candidates in parallel. A candidate that responds goes to `hosts`, and any other to `unreachable`,
    /// unless its socket is abandoned, which means that no process listens at it. After the deadline, the remaining
    /// candidates are not queried, and go to `unreachable`. Returns whether one of the sockets is abandoned.
    fn query_candidates(
        &mut self,
        candidates: &[SocketCandidate],
        timeouts: Timeouts,
        query: &(impl Fn(&mut Client) -> T + Sync),
    ) -> bool {
        let mut any_is_abandoned = false;
        let results = parallel_map(candidates, |candidate| {
            let remaining = timeouts.deadline.remaining().ok_or_else(|| {
                let message = "it was not asked, because other hosts took too long to answer";
                let late = io::Error::new(io::ErrorKind::TimedOut, message);
                (None, late.into())
            })?;
            let (mut client, host) = connect_candidate(candidate, remaining.min(timeouts.host))?;
            Ok((host, query(&mut client)))
        });
        for (candidate, result) in candidates.iter().zip(results) {
            match result {
                Ok(result) => self.hosts.push(result),
                Err((_, ClientError::Unreachable(error))) if is_abandoned_socket_error(&error) => {
                    any_is_abandoned = true;
                }
                Err((pid, error)) => self.unreachable.push(UnreachableHost {
                    pid: pid.or(candidate.process),
                    path: candidate.socket.clone(),
                    is_silent: error.is_timeout(),
                    reason: match error {
                        // Without its prefix "cannot reach the host", which `unreachable` says already.
                        ClientError::Unreachable(error) => error.to_string(),
                        error => error.to_string(),
                    },
                }),
            }
        }
        any_is_abandoned
    }

    /// Sets the pid of the unreachable host at `socket`, unless it is known. It is unknown if the host accepted no
    /// connection, so that the kernel reported no peer.
    fn set_unreachable_pid(&mut self, socket: &Path, pid: u32) {
        let mut hosts = self.unreachable.iter_mut();
        if let Some(host) = hosts.find(|host| host.path == socket) {
            host.pid.get_or_insert(pid);
        }
    }

    /// Queries `processes` at their sockets, except at those in `queried`. Adds a process without a socket to
    /// `unreachable`.
    fn query_processes(
        &mut self,
        processes: Vec<PluginProcess>,
        queried: &[SocketCandidate],
        timeouts: Timeouts,
        query: &(impl Fn(&mut Client) -> T + Sync),
    ) {
        let queried: HashSet<&Path> = queried
            .iter()
            .map(|candidate| candidate.socket.as_path())
            .collect();
        let mut candidates = Vec::new();
        for process in processes {
            if process.sockets.is_empty() {
                self.unreachable.push(UnreachableHost {
                    pid: Some(process.pid),
                    path: PathBuf::from(format!("/proc/{}", process.pid)),
                    is_silent: false,
                    reason: match process.is_starting {
                        true => STILL_STARTING.to_owned(),
                        false => {
                            format!(
                                "it has the plugin, but no control socket: {CONTROL_SOCKET_REMEDY}"
                            )
                        }
                    },
                });
            }
            for candidate in process.sockets {
                match queried.contains(candidate.socket.as_path()) {
                    true => self.set_unreachable_pid(&candidate.socket, process.pid),
                    false => candidates.push(candidate),
                }
            }
        }
        self.query_candidates(&candidates, timeouts, query);
    }
}

/// Returns the default directories that may contain sockets to which this user may connect.
fn reachable_socket_dirs() -> Vec<SocketDir> {
    let uid = rustix::process::geteuid().as_raw();
    socket_dir::socket_dirs(uid, |name| std::env::var_os(name))
}

/// Returns two lists: the distinct sockets in all default directories, and those of the directories that belong to this
/// user, from which abandoned sockets may be removed. Adds directories that cannot be read to `unreached`.
fn socket_candidates(unreached: &mut Vec<UnreachableHost>) -> (Vec<SocketCandidate>, Vec<PathBuf>) {
    let own = rustix::process::geteuid().as_raw();
    let mut ranked = Vec::new();
    let mut own_directories = Vec::new();
    for dir in reachable_socket_dirs() {
        let sockets = dir.owner().and_then(|owner| match owner {
            Some(owner) => Ok(Some((owner, socket_dir::list_sockets(&dir.directory)?))),
            None => Ok(None),
        });
        match sockets {
            // The directory does not exist.
            Ok(None) => {}
            Ok(Some((owner, sockets))) => {
                ranked.extend(sockets.into_iter().enumerate().map(|(rank, socket)| {
                    // A link that cannot be resolved cannot be connected to; that error is reported later.
                    let socket = socket.canonicalize().unwrap_or(socket);
                    let candidate = SocketCandidate {
                        socket,
                        owner,
                        process: None,
                    };
                    (rank, candidate)
                }));
                own_directories.extend((owner == own).then_some(dir.directory));
            }
            Err(error) => unreached.push(UnreachableHost {
                pid: None,
                path: dir.directory,
                is_silent: false,
                reason: error.to_string(),
            }),
        }
    }
    // Sockets of all directories alternate, so that a thousand silent sockets of one user do not delay other hosts.
    ranked.sort_by_key(|(rank, _)| *rank);
    let mut known_sockets = HashSet::new();
    ranked.retain(|(_, candidate)| known_sockets.insert(candidate.socket.clone()));
    let candidates = ranked.into_iter().map(|(_, candidate)| candidate);
    (candidates.collect(), own_directories)
}

/// Connects to a candidate and requests its identity. Later requests of the client have the same deadline. Fails with
/// `PermissionDenied` if another user opened the socket, and if the host does not accept or respond in time. An error
/// comes with the id of the process at the other end; `None` if it is unknown.
fn connect_candidate(
    candidate: &SocketCandidate,
    timeout: Duration,
) -> Result<(Client, RunningHost), (Option<u32>, ClientError)> {
    let deadline = Deadline::after(timeout);
    let connected = Client::connect_until(&candidate.socket, deadline);
    let mut client = connected.map_err(|error| (None, error))?;
    client.set_deadline(deadline);
    let peer = client.peer();
    if !candidate.may_be_opened_by(peer) {
        let message = format!(
            "its socket was opened by uid {}, not by uid {}",
            peer.uid, candidate.owner
        );
        let error = io::Error::new(io::ErrorKind::PermissionDenied, message);
        return Err((None, error.into()));
    }
    let info = client.host_info().map_err(|error| (peer.pid, error))?;
    let host = RunningHost {
        socket: candidate.socket.clone(),
        pid: peer.pid.unwrap_or(info.pid),
        info,
    };
    Ok((client, host))
}

impl SocketCandidate {
    /// Returns whether the peer may have opened the socket. It may if it is the user to whom the socket belongs. It may
    /// also be root, if the peer is the process in which the socket was found: that process has opened it before it
    /// dropped its privileges. All others are refused, because a link or a path in a process may lead to a socket of
    /// any user, and to a service that trusts root.
    fn may_be_opened_by(&self, peer: Peer) -> bool {
        // A process that has dropped its privileges may have opened its socket before.
        let was_privileged = peer.uid == 0 && self.process.is_some() && self.process == peer.pid;
        peer.uid == self.owner || was_privileged
    }
}

/// Returns whether the error shows that no process listens at the socket, or that it was removed.
fn is_abandoned_socket_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), ConnectionRefused | NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_matches_its_pid_name_and_program() {
        let check = |command: &str, target: &str, expected: bool| {
            let host = RunningHost {
                socket: PathBuf::from("/h.sock"),
                pid: 7,
                info: HostInfo {
                    pid: 1,
                    name: "web".to_owned(),
                    command: command.to_owned(),
                    version: String::new(),
                    started: 0,
                },
            };
            assert_eq!(host.matches(target), expected, "{command} {target}");
        };
        for target in ["7", "web", "server"] {
            check("/usr/bin/server --port 1", target, true);
        }
        for target in ["1", "--port", "/usr/bin/server"] {
            check("/usr/bin/server --port 1", target, false);
        }
        check(r"/opt/my\ shop/server --port 1", "server", true);
        check(r"/opt/my\ shop/server --port 1", "my", false);
        check(r"/opt/shop/my\ server /srv/x", "my server", true);
        check(r"/opt/shop/my\ server /srv/x", "x", false);
        check("server", "server", true);
    }

    #[test]
    fn socket_is_trusted_only_if_owner_opened_it() {
        let check = |owner, process, uid, pid, expected| {
            let candidate = SocketCandidate {
                socket: PathBuf::from("/h.sock"),
                owner,
                process,
            };
            let peer = Peer { uid, pid };
            assert_eq!(candidate.may_be_opened_by(peer), expected, "{candidate:?}");
        };
        check(1000, None, 1000, Some(7), true);
        check(1000, None, 1001, Some(7), false);
        check(1000, None, 0, Some(7), false);
        check(33, Some(7), 0, Some(7), true);
        check(33, Some(7), 0, Some(8), false);
        check(33, Some(7), 0, None, false);
    }
}
