//! Which hosts are served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memprof_host::client::Client;
use memprof_host::protocol::HostInfo;
use memprof_host::{Reach, Running, survey};
use memprof_messages::Status;

use crate::gateway::Gateway;
use crate::problem::{Problem, Result};
use crate::remote::{Remote, Wanted};
use crate::target::Target;

/// The hosts behind a router.
#[derive(Debug)]
pub struct Hosts(Kind);

#[derive(Debug)]
enum Kind {
    One(Arc<Gateway>),
    /// By pid, as it is called here. What ended is dropped when it is looked for.
    Running(Mutex<HashMap<u32, Known>>),
}

#[derive(Clone, Debug)]
struct Known {
    /// What it said of itself, which tells a process from a later one with its pid.
    info: HostInfo,
    gateway: Arc<Gateway>,
}

/// A host, and the way to it.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its process, as it is called here.
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) gateway: Arc<Gateway>,
}

/// A host that answered.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Its process, as it is called here.
    pub(crate) pid: u32,
    pub(crate) info: HostInfo,
    /// Its reply to `status`, where it gave one.
    pub(crate) status: Option<Status>,
}

impl Hosts {
    /// One host.
    pub fn one(target: Arc<dyn Target>) -> Self {
        Self(Kind::One(Arc::new(Gateway::new(target))))
    }

    /// Every host that this user may talk to.
    pub fn running() -> Self {
        Self(Kind::Running(Mutex::default()))
    }

    /// The hosts that answer, all asked at the same time. Blocks.
    pub(crate) fn look(&self) -> Vec<Seen> {
        let Kind::Running(known) = &self.0 else {
            return self.look_at_one().into_iter().collect();
        };
        let found = survey(Reach::Processes, status).hosts;
        remember(known, found.iter().map(|(host, _)| host));
        let seen = found.into_iter().map(|(host, status)| Seen {
            pid: host.pid,
            info: host.info,
            status,
        });
        seen.collect()
    }

    fn look_at_one(&self) -> Option<Seen> {
        let Kind::One(gateway) = &self.0 else {
            return None;
        };
        // One that just went away is not running.
        let info = gateway.target().host().ok()?;
        let status = gateway.target().message("status", "").ok()?;
        Some(Seen {
            pid: info.pid,
            info,
            status: serde_json::from_slice(&status.body).ok(),
        })
    }

    /// All of them that answer. Blocks.
    pub(crate) fn all(&self) -> Vec<Found> {
        let known = match &self.0 {
            Kind::Running(known) => known,
            Kind::One(gateway) => {
                // One that just went away is not running.
                let info = gateway.target().host().ok();
                let found = info.map(|info| Found {
                    pid: info.pid,
                    name: info.name,
                    gateway: Arc::clone(gateway),
                });
                return found.into_iter().collect();
            }
        };
        let found = survey(Reach::Processes, |_| ()).hosts;
        remember(known, found.iter().map(|(host, ())| host))
    }

    /// The only one, where no host has to be asked which it is.
    pub(crate) fn single(&self) -> Option<Arc<Gateway>> {
        match &self.0 {
            Kind::One(gateway) => Some(Arc::clone(gateway)),
            Kind::Running(_) => None,
        }
    }

    /// The only one. Blocks.
    pub(crate) fn only(&self) -> Result<Arc<Gateway>> {
        if let Some(gateway) = self.single() {
            return Ok(gateway);
        }
        let mut all = self.all();
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only.gateway),
            (None, _) => Err(Problem::gone(
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
    pub(crate) fn of_pid(&self, pid: u32) -> Result<Arc<Gateway>> {
        // One that is known is asked first: another host may take its time to answer.
        if let Some(known) = self.known(pid).filter(still_runs) {
            return Ok(known.gateway);
        }
        let missing = || Problem::gone(format!("no host runs as pid {pid}"));
        let found = match &self.0 {
            // It may have just started.
            Kind::Running(known) => memprof_host::of_pid(pid).map(|host| keep(known, &host)),
            Kind::One(gateway) => {
                let info = gateway.target().host()?;
                return (info.pid == pid)
                    .then(|| Arc::clone(gateway))
                    .ok_or_else(missing);
            }
        };
        found
            .or_else(|| {
                let mut all = self.all().into_iter();
                all.find(|known| known.pid == pid)
                    .map(|known| known.gateway)
            })
            .ok_or_else(missing)
    }

    fn known(&self, pid: u32) -> Option<Known> {
        let Kind::Running(known) = &self.0 else {
            return None;
        };
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&pid).cloned()
    }
}

/// Whether the process behind its socket is still the one that was found there.
fn still_runs(known: &Known) -> bool {
    let is_same = |info: HostInfo| info.pid == known.info.pid && info.started == known.info.started;
    known.gateway.target().host().is_ok_and(is_same)
}

fn status(client: &mut Client) -> Option<Status> {
    client.status().ok()
}

/// Keeps the gateways of those that were found, by pid, and drops all others.
fn remember<'a>(
    known: &Mutex<HashMap<u32, Known>>,
    found: impl Iterator<Item = &'a Running>,
) -> Vec<Found> {
    let found = found.map(|host| Found {
        pid: host.pid,
        name: host.info.name.clone(),
        gateway: keep(known, host),
    });
    let found: Vec<_> = found.collect();
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|pid, _| found.iter().any(|other| other.pid == *pid));
    found
}

fn keep(known: &Mutex<HashMap<u32, Known>>, host: &Running) -> Arc<Gateway> {
    let fresh = || {
        let remote = Remote::new(Wanted::Socket(host.socket.clone()));
        Known {
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
