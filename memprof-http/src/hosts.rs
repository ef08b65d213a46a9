//! Which hosts are served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memprof_host::{Running, running};

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
    /// By pid. What ended is dropped when it is looked for.
    Running(Mutex<HashMap<u32, Known>>),
}

#[derive(Debug)]
struct Known {
    /// Tells a process from a later one with its pid.
    started: u64,
    gateway: Arc<Gateway>,
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

    /// All of them that answer. Blocks.
    pub(crate) fn all(&self) -> Result<Vec<Arc<Gateway>>> {
        match &self.0 {
            Kind::One(gateway) => Ok(vec![Arc::clone(gateway)]),
            Kind::Running(known) => {
                let hosts = running();
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                known.retain(|pid, _| hosts.iter().any(|host| host.info.pid == *pid));
                Ok(hosts.iter().map(|host| keep(&mut known, host)).collect())
            }
        }
    }

    /// The only one. Blocks.
    pub(crate) fn only(&self) -> Result<Arc<Gateway>> {
        if let Kind::One(gateway) = &self.0 {
            return Ok(Arc::clone(gateway));
        }
        let mut all = self.all()?;
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => Err(Problem::gone(
                "no host is running that this user may talk to",
            )),
            _ => Err(Problem::not_found("several hosts are running")
                .remedy("put /host/PID in front of the path; GET /api/v1/hosts lists them")),
        }
    }

    /// The one of that pid. Blocks.
    pub(crate) fn of_pid(&self, pid: u32) -> Result<Arc<Gateway>> {
        // One that is known is asked first: another host may take its time to answer.
        if let Some(known) = self.known(pid).filter(|known| is(known, pid)) {
            return Ok(known);
        }
        let mut all = self.all()?.into_iter();
        let missing = || Problem::gone(format!("no host runs as pid {pid}"));
        all.find(|gateway| is(gateway, pid)).ok_or_else(missing)
    }

    fn known(&self, pid: u32) -> Option<Arc<Gateway>> {
        match &self.0 {
            Kind::One(gateway) => Some(Arc::clone(gateway)),
            Kind::Running(known) => {
                let known = known.lock().unwrap_or_else(PoisonError::into_inner);
                known.get(&pid).map(|known| Arc::clone(&known.gateway))
            }
        }
    }
}

fn is(gateway: &Gateway, pid: u32) -> bool {
    gateway.target().host().is_ok_and(|info| info.pid == pid)
}

fn keep(known: &mut HashMap<u32, Known>, host: &Running) -> Arc<Gateway> {
    let fresh = || {
        let remote = Remote::new(Wanted::Socket(host.socket.clone()));
        Known {
            started: host.info.started,
            gateway: Arc::new(Gateway::new(Arc::new(remote))),
        }
    };
    let known = known.entry(host.info.pid).or_insert_with(fresh);
    if known.started != host.info.started {
        *known = fresh();
    }
    Arc::clone(&known.gateway)
}
