//! Extracts the host that a request is about.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::gateway::{Gateway, run_blocking};
use crate::hosts::Hosts;
use crate::problem::{Problem, Result};

/// Permits to discover hosts, each on a blocking thread.
static DISCOVERY_PERMITS: Semaphore = Semaphore::const_new(8);
/// Time that a request waits for a permit.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// State that every handler can access.
pub(crate) type SharedHosts = Arc<Hosts>;

/// The host in the request's path, or the only one.
pub(crate) struct RequestHost(pub(crate) Arc<Gateway>);

impl FromRequestParts<SharedHosts> for RequestHost {
    type Rejection = Problem;

    /// Finds the host by `host_pid` in the path or, without that parameter, the only host. Fails if the path is
    /// malformed, no host has the pid, there is no host or more than one to choose from, or too many requests search
    /// for hosts.
    async fn from_request_parts(parts: &mut Parts, hosts: &SharedHosts) -> Result<Self> {
        let invalid = |_| Problem::invalid("the path is not UTF-8");
        let params = RawPathParams::from_request_parts(parts, hosts).await;
        let params = params.map_err(invalid)?;
        let pid = params.iter().find(|(name, _)| *name == "host_pid");
        let pid = pid.map(|(_, pid)| pid.parse::<u32>());
        let hosts = Arc::clone(hosts);
        let found = match (pid, hosts.single_host()) {
            (None, Some(only)) => Ok(only),
            (None, None) => discover_when_permitted(move || hosts.only_host()).await?,
            (Some(Ok(pid)), _) => discover_when_permitted(move || hosts.find_by_pid(pid)).await?,
            (Some(Err(_)), _) => Err(Problem::not_found("a host is named by its pid")),
        };
        found.map(Self)
    }
}

/// Calls `discover`, which searches for hosts, on a blocking thread, once a permit is free. Fails with status 503 after
/// [`PERMIT_TIMEOUT`], 10 s.
pub(crate) async fn discover_when_permitted<T: Send + 'static>(
    discover: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let Ok(Ok(permit)) = timeout(PERMIT_TIMEOUT, DISCOVERY_PERMITS.acquire()).await else {
        return Err(Problem::overloaded("too many requests look for hosts"));
    };
    run_blocking(move || {
        let found = discover();
        drop(permit);
        found
    })
    .await
}
