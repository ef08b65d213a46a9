//! The hosts that are running, found by their control sockets.
//!
//! Whoever asks may be root, and a host anybody's: only directories that belong to the user whose
//! hosts they hold are looked into, a socket's opener must be that user, all are asked at once,
//! and nobody is waited for long.

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

/// What one host may take to say who it is and to answer a question.
const PATIENCE: Duration = Duration::from_secs(3);
/// What all of them together may take.
const ALL: Duration = Duration::from_secs(10);

/// What is wrong with a process that has the plugin and cannot be asked, and the remedy.
pub const SILENT: &str = "it has the plugin, but no control socket: set `control=on` in the \
                          plugin's configuration, or attach again if memprof detached from it";

/// A host that answered.
#[derive(Clone, Debug)]
pub struct RunningHost {
    /// Its control socket.
    pub socket: PathBuf,
    /// Its process as it is called here; in a container it may call itself something else.
    pub pid: u32,
    /// Who it says that it is.
    pub info: HostInfo,
}

impl RunningHost {
    /// Whether `target` means this host: its pid, its name, or its program's file name.
    pub fn matches(&self, target: &str) -> bool {
        let info = &self.info;
        let program = info.command.split(' ').next().unwrap_or_default();
        let file_name = program.rsplit('/').next().unwrap_or_default();
        self.pid.to_string() == target || info.name == target || file_name == target
    }
}

/// What may be a host, and was not reached.
#[derive(Clone, Debug)]
pub struct UnreachableHost {
    /// Its process, where that is known.
    pub pid: Option<u32>,
    /// Its socket, or a directory of sockets.
    pub place: PathBuf,
    /// Why not.
    pub why: String,
}

/// How far to look for hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryScope {
    /// In the directories that sockets have by default.
    SocketDirs,
    /// Also by the processes that have the plugin, wherever their sockets lie.
    AllProcesses,
}

/// Every host that this user may talk to.
#[derive(Debug)]
pub struct Discovery<T> {
    /// By pid, with the answers to what was asked.
    pub hosts: Vec<(RunningHost, T)>,
    /// Those that did not answer, and directories that were not looked into.
    pub unreached: Vec<UnreachableHost>,
}

/// A socket that a host may listen at.
#[derive(Clone, Debug)]
struct SocketCandidate {
    socket: PathBuf,
    /// The user who must have opened it.
    owner: u32,
    /// The process that holds it, where that is how it was found.
    process: Option<u32>,
}

/// The hosts in the default directories that answer this user, by pid.
pub fn running_hosts() -> Vec<RunningHost> {
    let hosts = discover(DiscoveryScope::SocketDirs, |_| ()).hosts;
    hosts.into_iter().map(|(host, ())| host).collect()
}

/// The host of that pid whose socket has its default name: no other host is asked.
pub fn find_by_pid(pid: u32) -> Option<RunningHost> {
    let name = format!("{pid}.sock");
    let owned = own_socket_dirs().into_iter().filter_map(|place| {
        let owner = place.owner().ok()??;
        Some(SocketCandidate {
            socket: place.directory.join(&name),
            owner,
            process: None,
        })
    });
    let candidates: Vec<_> = owned.filter(|one| one.socket.exists()).collect();
    let answers = parallel_map(&candidates, |candidate| {
        connect_candidate(candidate, PATIENCE)
    });
    let mut hosts = answers.into_iter().flatten().map(|(_, host)| host);
    hosts.find(|host| host.pid == pid)
}

/// Asks every host that this user may talk to.
pub fn discover<T: Send>(
    reach: DiscoveryScope,
    question: impl Fn(&mut Client) -> T + Sync,
) -> Discovery<T> {
    let deadline = Deadline::after(ALL);
    let mut found = Discovery {
        hosts: Vec::new(),
        unreached: Vec::new(),
    };
    let (candidates, own) = socket_candidates(&mut found.unreached);
    let any_is_left_over = found.query_candidates(&candidates, deadline, &question);
    if reach == DiscoveryScope::AllProcesses {
        found.query_processes(&candidates, deadline, &question);
    }
    if any_is_left_over {
        own.iter().for_each(|directory| lock::sweep(directory));
    }
    found.hosts.sort_by_key(|(host, _)| host.pid);
    found
}

impl<T: Send> Discovery<T> {
    /// Adds what answers among the candidates. Returns whether nobody listens at one of them.
    fn query_candidates(
        &mut self,
        candidates: &[SocketCandidate],
        deadline: Deadline,
        question: &(impl Fn(&mut Client) -> T + Sync),
    ) -> bool {
        let mut any_is_left_over = false;
        let answers = parallel_map(candidates, |candidate| {
            let left = deadline.left().ok_or_else(|| {
                let message = "it was not asked, because other hosts took too long to answer";
                let late = io::Error::new(io::ErrorKind::TimedOut, message);
                (None, late.into())
            })?;
            let (mut client, host) = connect_candidate(candidate, left.min(PATIENCE))?;
            Ok((host, question(&mut client)))
        });
        for (candidate, answer) in candidates.iter().zip(answers) {
            match answer {
                Ok(answer) => self.hosts.push(answer),
                Err((_, ClientError::Unreachable(error))) if is_abandoned(&error) => {
                    any_is_left_over = true;
                }
                Err((pid, error)) => self.unreached.push(UnreachableHost {
                    pid: pid.or(candidate.process),
                    place: candidate.socket.clone(),
                    why: match error {
                        ClientError::Unreachable(error) => error.to_string(),
                        error => error.to_string(),
                    },
                }),
            }
        }
        any_is_left_over
    }

    fn query_processes(
        &mut self,
        asked: &[SocketCandidate],
        deadline: Deadline,
        question: &(impl Fn(&mut Client) -> T + Sync),
    ) {
        let known = self.hosts.iter().map(|(host, _)| host.pid).collect();
        let asked: HashSet<&Path> = asked.iter().map(|one| one.socket.as_path()).collect();
        let mut candidates = Vec::new();
        for process in processes::find_with_plugin(&known) {
            if process.sockets.is_empty() {
                self.unreached.push(UnreachableHost {
                    pid: Some(process.pid),
                    place: PathBuf::from(format!("/proc/{}", process.pid)),
                    why: SILENT.to_owned(),
                });
            }
            let sockets = process.sockets.into_iter();
            candidates.extend(sockets.filter(|one| !asked.contains(one.socket.as_path())));
        }
        self.query_candidates(&candidates, deadline, question);
    }
}

fn own_socket_dirs() -> Vec<SocketDir> {
    let uid = rustix::process::geteuid().as_raw();
    socket_dir::socket_dirs(uid, |name| std::env::var_os(name))
}

/// The sockets of all directories, without doubles, and this user's own directories, in which
/// leftovers may be removed.
fn socket_candidates(unreached: &mut Vec<UnreachableHost>) -> (Vec<SocketCandidate>, Vec<PathBuf>) {
    let own = rustix::process::geteuid().as_raw();
    let mut ranked = Vec::new();
    let mut swept = Vec::new();
    for place in own_socket_dirs() {
        let sockets = place.owner().and_then(|owner| match owner {
            Some(owner) => Ok(Some((owner, socket_dir::sockets(&place.directory)?))),
            None => Ok(None),
        });
        match sockets {
            Ok(None) => {}
            Ok(Some((owner, sockets))) => {
                ranked.extend(sockets.into_iter().enumerate().map(|(rank, socket)| {
                    // What cannot be followed cannot be connected to: that error is told.
                    let socket = socket.canonicalize().unwrap_or(socket);
                    let candidate = SocketCandidate {
                        socket,
                        owner,
                        process: None,
                    };
                    (rank, candidate)
                }));
                swept.extend((owner == own).then_some(place.directory));
            }
            Err(error) => unreached.push(UnreachableHost {
                pid: None,
                place: place.directory,
                why: error.to_string(),
            }),
        }
    }
    // One of each directory in turn: a thousand silent sockets of one user's delay nobody's host.
    ranked.sort_by_key(|(rank, _)| *rank);
    let mut known = HashSet::new();
    ranked.retain(|(_, candidate)| known.insert(candidate.socket.clone()));
    let candidates = ranked.into_iter().map(|(_, candidate)| candidate);
    (candidates.collect(), swept)
}

/// Connects to a host and asks who it is. An error comes with the process at the other end, where that is known.
fn connect_candidate(
    candidate: &SocketCandidate,
    patience: Duration,
) -> Result<(Client, RunningHost), (Option<u32>, ClientError)> {
    let deadline = Deadline::after(patience);
    let connected = Client::connect_until(&candidate.socket, deadline);
    let mut client = connected.map_err(|error| (None, error))?;
    client.set_deadline(deadline);
    let peer = client.peer();
    if !candidate.may_be_opened_by(peer) {
        let message = format!(
            "its socket was opened by uid {}, not by uid {}",
            peer.uid, candidate.owner
        );
        let refused = io::Error::new(io::ErrorKind::PermissionDenied, message);
        return Err((None, refused.into()));
    }
    let info = client.host().map_err(|error| (peer.pid, error))?;
    let host = RunningHost {
        socket: candidate.socket.clone(),
        pid: peer.pid.unwrap_or(info.pid),
        info,
    };
    Ok((client, host))
}

impl SocketCandidate {
    /// A link, or a path that is told by a process, may lead to anybody's socket, and to a service
    /// that takes root's word.
    fn may_be_opened_by(&self, peer: Peer) -> bool {
        // A process that has dropped its rights may have opened its socket before.
        let before = peer.uid == 0 && self.process.is_some() && self.process == peer.pid;
        peer.uid == self.owner || before
    }
}

/// Whether nobody listens at a socket, or it is gone.
fn is_abandoned(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), ConnectionRefused | NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_believed_only_from_its_owner() {
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
