//! The routes: those of a host, at the root for the only one and below `/host/PID` for each.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::routing::get;

use crate::gateway::{Gateway, blocking};
use crate::hosts::Hosts;
use crate::problem::{Problem, Result};
use crate::{api, page};

/// What every handler can reach.
pub(crate) type Shared = Arc<Hosts>;

/// All routes over `hosts`.
pub fn router(hosts: Hosts) -> Router {
    let shared: Shared = Arc::new(hosts);
    Router::new()
        .route("/", get(page::index))
        .merge(of_host())
        .route("/api/v1/hosts", get(api::hosts))
        .route("/host/{host_pid}", get(page::with_slash))
        .route("/host/{host_pid}/", get(page::index))
        .nest("/host/{host_pid}", of_host())
        .fallback(|| async { Problem::not_found("there is no such page") })
        .with_state(shared)
}

/// The routes of one host.
fn of_host() -> Router<Shared> {
    page::routes().merge(api::routes())
}

/// The host that a request is about.
pub(crate) struct To(pub(crate) Arc<Gateway>);

impl FromRequestParts<Shared> for To {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, hosts: &Shared) -> Result<Self> {
        let invalid = |_| Problem::invalid("the path is not UTF-8");
        let params = RawPathParams::from_request_parts(parts, hosts).await;
        let params = params.map_err(invalid)?;
        let pid = params.iter().find(|(name, _)| *name == "host_pid");
        let pid = pid.map(|(_, pid)| pid.parse::<u32>());
        let hosts = Arc::clone(hosts);
        let found = match pid {
            None => blocking(move || hosts.only()).await?,
            Some(Ok(pid)) => blocking(move || hosts.of_pid(pid)).await?,
            Some(Err(_)) => Err(Problem::not_found("a host is named by its pid")),
        };
        found.map(Self)
    }
}
