//! Which hosts are served.

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

/// The hosts behind a router.
#[derive(Debug)]
pub struct Hosts(HostSource);

#[derive(Debug)]
enum HostSource {
    Single(Arc<Gateway>),
    /// By pid, as it is called here. What ended is dropped when it is looked for.
    Discovered(Mutex<HashMap<u32, CachedHost>>),
}

#[derive(Clone, Debug)]
struct CachedHost {
    /// What it said of itself, which tells a process from a later one with its pid.
    info: HostInfo,
    gateway: Arc<Gateway>,
}

/// A host, and the way to it.
#[derive(Debug)]
pub(crate) struct HostGateway {
    /// Its process, as it is called here.
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) gateway: Arc<Gateway>,
}

/// A host that answered.
#[derive(Debug)]
pub(crate) struct ListedHost {
    /// Its process, as it is called here.
    pub(crate) pid: u32,
    pub(crate) info: HostInfo,
    /// Its reply to `status`, where it gave one.
    pub(crate) status: Option<ProfilerStatus>,
}

impl Hosts {
    /// One host.
    pub fn with_single(target: Arc<dyn HostClient>) -> Self {
        Self(HostSource::Single(Arc::new(Gateway::new(target))))
    }

    /// Every host that this user may talk to.
    pub fn running() -> Self {
        Self(HostSource::Discovered(Mutex::default()))
    }

    /// The hosts that answer, all asked at the same time. Blocks.
    pub(crate) fn list(&self) -> Vec<ListedHost> {
        let HostSource::Discovered(known) = &self.0 else {
            return self.probe_single().into_iter().collect();
        };
        let found = discover(DiscoveryScope::AllProcesses, status).hosts;
        cache_hosts(known, found.iter().map(|(host, _)| host));
        let seen = found.into_iter().map(|(host, status)| ListedHost {
            pid: host.pid,
            info: host.info,
            status,
        });
        seen.collect()
    }

    fn probe_single(&self) -> Option<ListedHost> {
        let HostSource::Single(gateway) = &self.0 else {
            return None;
        };
        // One that just went away is not running.
        let info = gateway.target().host().ok()?;
        let status = gateway.target().message("status", "").ok()?;
        Some(ListedHost {
            pid: info.pid,
            info,
            status: serde_json::from_slice(&status.body).ok(),
        })
    }

    /// All of them that answer. Blocks.
    pub(crate) fn find_all(&self) -> Vec<HostGateway> {
        let known = match &self.0 {
            HostSource::Discovered(known) => known,
            HostSource::Single(gateway) => {
                // One that just went away is not running.
                let info = gateway.target().host().ok();
                let found = info.map(|info| HostGateway {
                    pid: info.pid,
                    name: info.name,
                    gateway: Arc::clone(gateway),
                });
                return found.into_iter().collect();
            }
        };
        let found = discover(DiscoveryScope::AllProcesses, |_| ()).hosts;
        cache_hosts(known, found.iter().map(|(host, ())| host))
    }

    /// The only one, where no host has to be asked which it is.
    pub(crate) fn single(&self) -> Option<Arc<Gateway>> {
        match &self.0 {
            HostSource::Single(gateway) => Some(Arc::clone(gateway)),
            HostSource::Discovered(_) => None,
        }
    }

    /// The only one. Blocks.
    pub(crate) fn only(&self) -> Result<Arc<Gateway>> {
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

    /// The one of that pid. Blocks.
    pub(crate) fn by_pid(&self, pid: u32) -> Result<Arc<Gateway>> {
        // One that is known is asked first: another host may take its time to answer.
        if let Some(known) = self.known(pid).filter(is_same_process) {
            return Ok(known.gateway);
        }
        let missing = || Problem::host_unavailable(format!("no host runs as pid {pid}"));
        let found = match &self.0 {
            // It may have just started.
            HostSource::Discovered(known) => {
                memprof_host::find_by_pid(pid).map(|host| cache_host(known, &host))
            }
            HostSource::Single(gateway) => {
                let info = gateway.target().host()?;
                return (info.pid == pid)
                    .then(|| Arc::clone(gateway))
                    .ok_or_else(missing);
            }
        };
        found
            .or_else(|| {
                let mut all = self.find_all().into_iter();
                all.find(|known| known.pid == pid)
                    .map(|known| known.gateway)
            })
            .ok_or_else(missing)
    }

    fn known(&self, pid: u32) -> Option<CachedHost> {
        let HostSource::Discovered(known) = &self.0 else {
            return None;
        };
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&pid).cloned()
    }
}

/// Whether the process behind its socket is still the one that was found there.
fn is_same_process(known: &CachedHost) -> bool {
    let is_same = |info: HostInfo| info.pid == known.info.pid && info.started == known.info.started;
    known.gateway.target().host().is_ok_and(is_same)
}

fn status(client: &mut Client) -> Option<ProfilerStatus> {
    client.status().ok()
}

/// Keeps the gateways of those that were found, by pid, and drops all others.
fn cache_hosts<'a>(
    known: &Mutex<HashMap<u32, CachedHost>>,
    found: impl Iterator<Item = &'a RunningHost>,
) -> Vec<HostGateway> {
    let found = found.map(|host| HostGateway {
        pid: host.pid,
        name: host.info.name.clone(),
        gateway: cache_host(known, host),
    });
    let found: Vec<_> = found.collect();
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|pid, _| found.iter().any(|other| other.pid == *pid));
    found
}

fn cache_host(known: &Mutex<HashMap<u32, CachedHost>>, host: &RunningHost) -> Arc<Gateway> {
    let fresh = || {
        let remote = RemoteHost::new(HostSelector::Socket(host.socket.clone()));
        CachedHost {
            info: host.info.clone(),
            gateway: Arc::new(Gateway::new(Arc::new(remote))),
        }
    };
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.entry(host.pid).or_insert_with(fresh);
    if known.info.started != host.info.started || known.info.pid != host.info.pid {
        *known = fresh();
    }
    Arc::clone(&known.gateway)
}
