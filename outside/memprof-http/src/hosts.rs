//! The hosts that a router serves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memprof_host::client::Client;
use memprof_host::protocol::HostInfo;
use memprof_host::{DiscoveryScope, RunningHost, discover};
use memprof_messages::ProfilerStatus;

use crate::gateway::Gateway;
use crate::host_client::HostClient;
use crate::problem::{Problem, Result};
use crate::remote_host::{HostSelector, RemoteHost};

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
    pub(crate) gateway: Arc<Gateway>,
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
    /// Serves one host, which need not answer yet.
    pub fn with_single(target: Arc<dyn HostClient>) -> Self {
        Self(HostSource::Single(Arc::new(Gateway::new(target))))
    }

    /// Serves every host that this user may access.
    pub fn running() -> Self {
        Self(HostSource::Discovered(Mutex::default()))
    }

    /// Lists the hosts that answer, querying all at the same time. Blocks.
    pub(crate) fn list(&self) -> Vec<ListedHost> {
        let HostSource::Discovered(cache) = &self.0 else {
            return self.probe_single().into_iter().collect();
        };
        let found = discover(DiscoveryScope::AllProcesses, query_status).hosts;
        cache_hosts(cache, found.iter().map(|(host, _)| host));
        let listed = found.into_iter().map(|(host, status)| ListedHost {
            pid: host.pid,
            info: host.info,
            status,
        });
        listed.collect()
    }

    /// Queries the only host. `None` if it does not answer, or hosts are discovered. Blocks.
    fn probe_single(&self) -> Option<ListedHost> {
        let HostSource::Single(gateway) = &self.0 else {
            return None;
        };
        // A host that does not answer is not listed.
        let info = gateway.client().host().ok()?;
        let status = gateway.client().message("status", "").ok()?;
        Some(ListedHost {
            pid: info.pid,
            info,
            status: serde_json::from_slice(&status.body).ok(),
        })
    }

    /// Returns all hosts that answer, and caches them. Blocks.
    pub(crate) fn find_all(&self) -> Vec<HostGateway> {
        let cache = match &self.0 {
            HostSource::Discovered(cache) => cache,
            HostSource::Single(gateway) => {
                // A host that does not answer is not listed.
                let info = gateway.client().host().ok();
                let found = info.map(|info| HostGateway {
                    pid: info.pid,
                    name: info.name,
                    gateway: Arc::clone(gateway),
                });
                return found.into_iter().collect();
            }
        };
        let found = discover(DiscoveryScope::AllProcesses, |_| ()).hosts;
        cache_hosts(cache, found.iter().map(|(host, ())| host))
    }

    /// Returns the only host, without a query. `None` if hosts are discovered.
    pub(crate) fn single(&self) -> Option<Arc<Gateway>> {
        match &self.0 {
            HostSource::Single(gateway) => Some(Arc::clone(gateway)),
            HostSource::Discovered(_) => None,
        }
    }

    /// Returns the only running host. Fails if there is none, or several. Blocks.
    pub(crate) fn only_running(&self) -> Result<Arc<Gateway>> {
        if let Some(gateway) = self.single() {
            return Ok(gateway);
        }
        let mut all = self.find_all();
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only.gateway),
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

    /// Returns the host of that process. Fails if there is none that this user can reach. Blocks.
    pub(crate) fn by_pid(&self, pid: u32) -> Result<Arc<Gateway>> {
        // A cached host is queried first: discovering all may wait for one that is slow.
        if let Some(host) = self.cached_host(pid).filter(is_same_process) {
            return Ok(host.gateway);
        }
        let missing = || Problem::host_unavailable(format!("no host runs as pid {pid}"));
        let found = match &self.0 {
            // The host may have just started.
            HostSource::Discovered(cache) => {
                memprof_host::find_by_pid(pid).map(|host| cache_host(cache, &host))
            }
            HostSource::Single(gateway) => {
                let info = gateway.client().host()?;
                return (info.pid == pid)
                    .then(|| Arc::clone(gateway))
                    .ok_or_else(missing);
            }
        };
        found
            .or_else(|| {
                let mut all = self.find_all().into_iter();
                all.find(|host| host.pid == pid).map(|host| host.gateway)
            })
            .ok_or_else(missing)
    }

    /// Returns the cached host of a process. `None` if it is not cached, or there is a single host.
    fn cached_host(&self, pid: u32) -> Option<CachedHost> {
        let HostSource::Discovered(cache) = &self.0 else {
            return None;
        };
        let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(&pid).cloned()
    }
}

/// Returns whether the host at a cached socket is still the same process, by pid and start. Blocks.
fn is_same_process(host: &CachedHost) -> bool {
    let is_same = |info: HostInfo| info.pid == host.info.pid && info.started == host.info.started;
    host.gateway.client().host().is_ok_and(is_same)
}

/// Queries the state of the profiler. `None` if the plugin does not answer.
fn query_status(client: &mut Client) -> Option<ProfilerStatus> {
    client.status().ok()
}

/// Caches the gateways of the hosts found, and removes all others. Returns them.
fn cache_hosts<'a>(
    cache: &Mutex<HashMap<u32, CachedHost>>,
    found: impl Iterator<Item = &'a RunningHost>,
) -> Vec<HostGateway> {
    let found = found.map(|host| HostGateway {
        pid: host.pid,
        name: host.info.name.clone(),
        gateway: cache_host(cache, host),
    });
    let found: Vec<_> = found.collect();
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    cache.retain(|pid, _| found.iter().any(|other| other.pid == *pid));
    found
}

/// Returns the cached gateway of a host, replacing that of an earlier process with its id.
fn cache_host(cache: &Mutex<HashMap<u32, CachedHost>>, host: &RunningHost) -> Arc<Gateway> {
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
