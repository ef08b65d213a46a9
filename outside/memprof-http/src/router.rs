//! The routes: those of a host, at the root for the only one and below `/host/PID` for each.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::access::Access;
use crate::compat::Compat;
use crate::hosts::Hosts;
use crate::problem::Problem;
use crate::request_host::SharedHosts;
use crate::{access, api, metrics, openapi, page, scrape_targets};

/// Who may ask, and for what.
#[derive(Clone, Debug, Default)]
pub struct RouterSettings {
    /// The rules of access.
    pub access: Access,
    /// The other systems' endpoints.
    pub compat: Compat,
}

/// All routes over `hosts`.
pub fn router(hosts: Hosts, settings: RouterSettings) -> Router {
    let of_host = page::routes()
        .merge(api::routes())
        .merge(settings.compat.routes());
    let routes = Router::new()
        .route("/", get(page::index))
        .merge(of_host.clone())
        .route("/api/v1/hosts", get(api::hosts))
        .route("/api/v1/openapi.json", get(openapi::document))
        .route("/host/{host_pid}", get(page::with_slash))
        .route("/host/{host_pid}/", get(page::index))
        .nest("/host/{host_pid}", of_host)
        .merge(metrics_routes());
    with_access(finish(routes, hosts), settings.access)
}

/// What scrapers read of `hosts`: metrics, and profiles as Go serves them. Nothing here switches
/// anything; a profile is a dump, which the host keeps.
pub fn scrape_router(hosts: Hosts, access: Access) -> Router {
    let go = Compat {
        go: true,
        ..Compat::NONE
    };
    let routes = metrics_routes().nest("/host/{host_pid}", go.routes());
    with_access(finish(routes, hosts), access)
}

/// Puts the rules of access around routes of any kind.
pub fn with_access(routes: Router, access: Access) -> Router {
    // Around the router, not in it: a token is taken off the path before a route is looked for.
    let guard = axum::middleware::from_fn_with_state(Arc::new(access), access::guard);
    Router::new().fallback_service(routes).layer(guard)
}

/// Metrics, of all hosts and of each, and where these are.
fn metrics_routes() -> Router<SharedHosts> {
    Router::new()
        .route("/metrics", get(metrics::all_metrics))
        .route("/host/{host_pid}/metrics", get(metrics::host_metrics))
        .route("/targets", get(scrape_targets::targets))
}

fn finish(routes: Router<SharedHosts>, hosts: Hosts) -> Router {
    let shared: SharedHosts = Arc::new(hosts);
    routes
        .fallback(|| async { Problem::not_found("there is no such page") })
        .with_state(shared)
}
