//! The hosts that a router serves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memprof_host::client::Client;
use memprof_host::protocol::HostInfo;
use memprof_host::{DiscoveryScope, RunningHost, UnreachableHost, discover_hosts_within};
use memprof_messages::ProfilerStatus;

use crate::gateway::Gateway;
use crate::host_client::{HostClient, HostUnavailable};
use crate::problem::{Problem, Result};
use crate::remote_host::{HostSelector, RemoteHost};

/// Time that each host has to answer when all are listed.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that each host has to answer when one of them is looked for.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);

/// Hosts behind a router.
#[derive(Debug)]
pub struct Hosts(HostSource);

/// Source of the hosts.
#[derive(Debug)]
enum HostSource {
    Single(Arc<Gateway>),
    /// Cached hosts by process id in this PID namespace. Those that ended are removed when hosts are discovered.
    Discovered(Mutex<HashMap<u32, CachedHost>>),
}

/// A host in the cache.
#[derive(Clone, Debug)]
struct CachedHost {
    /// The host's own information, which distinguishes its process from a later one with the same id.
    info: HostInfo,
    gateway: Arc<Gateway>,
}

/// A host with its gateway.
#[derive(Debug)]
pub(crate) struct HostGateway {
    /// Process id in this PID namespace.
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// `None` if the host does not answer.
    pub(crate) gateway: Option<Arc<Gateway>>,
}

/// A host that runs but did not answer in time: it is stopped, or busy.
#[derive(Debug)]
pub(crate) struct SilentHost {
    /// Process id in this PID namespace.
    pub(crate) pid: u32,
    /// Name that it had when it answered, else its program's; empty if both are unknown.
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// A host that answered.
#[derive(Debug)]
pub(crate) struct ListedHost {
    /// Process id in this PID namespace.
    pub(crate) pid: u32,
    pub(crate) info: HostInfo,
    /// Reply to `status`. `None` if the host did not answer it.
    pub(crate) status: Option<ProfilerStatus>,
}

impl Hosts {
    /// Creates the hosts of a server for one host, which need not answer yet.
    pub fn with_single(target: Arc<dyn HostClient>) -> Self {
        Self(HostSource::Single(Arc::new(Gateway::new(target))))
    }

    /// Creates the hosts of a server for every host that this user may access. They are discovered when a request needs
    /// them.
    pub fn with_discovered() -> Self {
        Self(HostSource::Discovered(Mutex::default()))
    }

    /// Lists the hosts that answer, and those that run but do not answer. Queries all at the same time, and updates the
    /// cache. A single host that does not answer is in neither list. Blocks for little more than [`ANSWER_TIMEOUT`],
    /// 0.5 s.
    pub(crate) fn list(&self) -> (Vec<ListedHost>, Vec<SilentHost>) {
        let HostSource::Discovered(cache) = &self.0 else {
            return (self.query_single_host().into_iter().collect(), Vec::new());
        };
        let scope = DiscoveryScope::AllProcesses;
        let found = discover_hosts_within(ANSWER_TIMEOUT, scope, query_status);
        let silent = silent_hosts(cache, found.unreachable);
        cache_hosts(cache, found.hosts.iter().map(|(host, _)| host), &silent);
        let listed = found.hosts.into_iter().map(|(host, status)| ListedHost {
            pid: host.pid,
            info: host.info,
            status,
        });
        (listed.collect(), silent)
    }

    /// Queries the process and the profiler of the only host. `None` if it does not answer, or this server discovers
    /// its hosts. Blocks.
    fn query_single_host(&self) -> Option<ListedHost> {
        let HostSource::Single(gateway) = &self.0 else {
            return None;
        };
        // A host that does not answer is not listed.
        let (pid, info) = query_pid_and_info(gateway).ok()?;
        let status = gateway.client().send_message("status", "").ok()?;
        Some(ListedHost {
            pid,
            info,
            status: serde_json::from_slice(&status.body).ok(),
        })
    }

    /// Returns all hosts in the order of their process ids, and caches them. A discovered host that does not answer has
    /// no gateway; a single host that does not answer is left out. Blocks for little more than [`ANSWER_TIMEOUT`], 0.5
    /// s.
    pub(crate) fn find_all(&self) -> Vec<HostGateway> {
        self.find_all_within(ANSWER_TIMEOUT)
    }

    /// Like [`find_all`](Self::find_all), but gives each host up to `timeout` to answer.
    fn find_all_within(&self, timeout: Duration) -> Vec<HostGateway> {
        let cache = match &self.0 {
            HostSource::Discovered(cache) => cache,
            HostSource::Single(gateway) => {
                // A host that does not answer is not listed.
                let process = query_pid_and_info(gateway).ok();
                let found = process.map(|(pid, info)| HostGateway {
                    pid,
                    name: info.name,
                    gateway: Some(Arc::clone(gateway)),
                });
                return found.into_iter().collect();
            }
        };
        let found = discover_hosts_within(timeout, DiscoveryScope::AllProcesses, |_| ());
        let silent = silent_hosts(cache, found.unreachable);
        let mut all = cache_hosts(cache, found.hosts.iter().map(|(host, ())| host), &silent);
        all.extend(
            silent
                .into_iter()
                .map(|SilentHost { pid, name, .. }| HostGateway {
                    pid,
                    name,
                    gateway: None,
                }),
        );
        all.sort_by_key(|host| host.pid);
        all
    }

    /// Returns the host of a server that serves a single one, without a query. `None` if this server discovers its
    /// hosts.
    pub(crate) fn single_host(&self) -> Option<Arc<Gateway>> {
        match &self.0 {
            HostSource::Single(gateway) => Some(Arc::clone(gateway)),
            HostSource::Discovered(_) => None,
        }
    }

    /// Returns the only host: if this server serves a single one, without a query, else the only discovered host that
    /// answers within [`SEARCH_TIMEOUT`], 3 s. Fails if none or more than one answers. Blocks.
    pub(crate) fn only_host(&self) -> Result<Arc<Gateway>> {
        if let Some(gateway) = self.single_host() {
            return Ok(gateway);
        }
        let all = self.find_all_within(SEARCH_TIMEOUT).into_iter();
        let mut all: Vec<_> = all.filter_map(|host| host.gateway).collect();
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => Err(Problem::host_unavailable(
                "no process with the plugin is running that this user can reach",
            )
            .remedy(
                "load the plugin: `memprof attach PID` into a running process, `memprof run -- PROGRAM` into a new one",
            )),
            _ => Err(Problem::not_found("several hosts are running")
                .remedy("put /host/PID in front of the path; GET /api/v1/hosts lists them")),
        }
    }

    /// Returns the host in the process `pid`. Fails if this user can reach no such host. Blocks.
    pub(crate) fn find_by_pid(&self, pid: u32) -> Result<Arc<Gateway>> {
        // A cached host is queried first: the discovery of all hosts may wait for a slow one.
        if let Some(host) = self.cached_host(pid).filter(is_still_same_process) {
            return Ok(host.gateway);
        }
        let missing = || Problem::no_host_error(pid);
        let found = match &self.0 {
            // The host may have just started.
            HostSource::Discovered(cache) => {
                memprof_host::find_host_by_pid(pid).map(|host| get_or_cache_gateway(cache, &host))
            }
            HostSource::Single(gateway) => {
                let (found, _) = query_pid_and_info(gateway)?;
                return (found == pid)
                    .then(|| Arc::clone(gateway))
                    .ok_or_else(missing);
            }
        };
        found
            .or_else(|| {
                // The search above finds only sockets with their default names.
                let mut all = self.find_all_within(SEARCH_TIMEOUT).into_iter();
                all.find(|host| host.pid == pid)?.gateway
            })
            .ok_or_else(missing)
    }

    /// Returns the cached host in the process `pid`. `None` if it is not cached, or this server serves a single host.
    fn cached_host(&self, pid: u32) -> Option<CachedHost> {
        let HostSource::Discovered(cache) = &self.0 else {
            return None;
        };
        let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(&pid).cloned()
    }
}

/// Queries a host. Returns its information and its pid in this PID namespace or, if the process is not visible here, in
/// its own one. Fails if the host does not answer. Blocks.
fn query_pid_and_info(gateway: &Gateway) -> std::result::Result<(u32, HostInfo), HostUnavailable> {
    let info = gateway.client().host_info()?;
    let visible = gateway.client().visible_pid()?;
    Ok((visible.unwrap_or(info.pid), info))
}

/// Returns whether a cached host is still the same process: it answers, and with the cached pid and start time. Blocks.
fn is_still_same_process(host: &CachedHost) -> bool {
    let is_same = |info: HostInfo| info.pid == host.info.pid && info.started == host.info.started;
    host.gateway.client().host_info().is_ok_and(is_same)
}

/// Queries the state of the profiler. `None` if the host does not answer, or the plugin replies with an error.
fn query_status(client: &mut Client) -> Option<ProfilerStatus> {
    client.status().ok()
}

/// Returns those of the `unreachable` hosts that run but did not answer in time; leaves out those whose pid is unknown.
/// Their names are from the cache or, if they never answered, from /proc.
fn silent_hosts(
    cache: &Mutex<HashMap<u32, CachedHost>>,
    unreachable: Vec<UnreachableHost>,
) -> Vec<SilentHost> {
    let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    let silent = unreachable.into_iter().filter(|host| host.is_silent);
    let silent = silent.filter_map(|host| {
        let pid = host.pid?;
        let known = cache.get(&pid).map(|cached| cached.info.name.clone());
        let program = || std::fs::read_to_string(format!("/proc/{pid}/comm"));
        Some(SilentHost {
            pid,
            name: known.unwrap_or_else(|| program().unwrap_or_default().trim_end().to_owned()),
            reason: host.reason,
        })
    });
    silent.collect()
}

/// Caches a gateway for each host in `found`, and returns the gateways. Removes all other hosts from the cache, except
/// the silent ones, which run but did not answer in time.
fn cache_hosts<'a>(
    cache: &Mutex<HashMap<u32, CachedHost>>,
    found: impl Iterator<Item = &'a RunningHost>,
    silent: &[SilentHost],
) -> Vec<HostGateway> {
    let found = found.map(|host| HostGateway {
        pid: host.pid,
        name: host.info.name.clone(),
        gateway: Some(get_or_cache_gateway(cache, host)),
    });
    let found: Vec<_> = found.collect();
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    cache.retain(|pid, _| {
        found.iter().any(|other| other.pid == *pid) || silent.iter().any(|other| other.pid == *pid)
    });
    found
}

/// Returns the cached gateway of a host. If there is none, or it is that of an earlier process with the same pid,
/// creates and caches one.
fn get_or_cache_gateway(
    cache: &Mutex<HashMap<u32, CachedHost>>,
    host: &RunningHost,
) -> Arc<Gateway> {
    let new_entry = || {
        let remote = RemoteHost::new(HostSelector::Socket(host.socket.clone()));
        CachedHost {
            info: host.info.clone(),
            gateway: Arc::new(Gateway::new(Arc::new(remote))),
        }
    };
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = cache.entry(host.pid).or_insert_with(new_entry);
    if entry.info.started != host.info.started || entry.info.pid != host.info.pid {
        *entry = new_entry();
    }
    Arc::clone(&entry.gateway)
}
