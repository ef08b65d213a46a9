//! The host that a request is about.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::gateway::{Gateway, blocking};
use crate::hosts::Hosts;
use crate::problem::{Problem, Result};

/// Requests that look for hosts at a time.
static LOOKS: Semaphore = Semaphore::const_new(8);
/// How long one waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// What every handler can reach.
pub(crate) type SharedHosts = Arc<Hosts>;

/// The host that the path names, or the only one.
pub(crate) struct RequestHost(pub(crate) Arc<Gateway>);

impl FromRequestParts<SharedHosts> for RequestHost {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, hosts: &SharedHosts) -> Result<Self> {
        let invalid = |_| Problem::invalid("the path is not UTF-8");
        let params = RawPathParams::from_request_parts(parts, hosts).await;
        let params = params.map_err(invalid)?;
        let pid = params.iter().find(|(name, _)| *name == "host_pid");
        let pid = pid.map(|(_, pid)| pid.parse::<u32>());
        let hosts = Arc::clone(hosts);
        let found = match (pid, hosts.single()) {
            (None, Some(only)) => Ok(only),
            (None, None) => find_hosts(move || hosts.only()).await?,
            (Some(Ok(pid)), _) => find_hosts(move || hosts.by_pid(pid)).await?,
            (Some(Err(_)), _) => Err(Problem::not_found("a host is named by its pid")),
        };
        found.map(Self)
    }
}

/// Looks for hosts, on a thread that may wait for them, when its turn has come.
pub(crate) async fn find_hosts<T: Send + 'static>(
    hosts: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let Ok(Ok(turn)) = timeout(PATIENCE, LOOKS.acquire()).await else {
        return Err(Problem::overloaded("too many requests look for hosts"));
    };
    blocking(move || {
        let found = hosts();
        drop(turn);
        found
    })
    .await
}
