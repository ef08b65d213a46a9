//! The routes: those of a host, at the root for the only one and below `/host/PID` for each.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::access::Access;
use crate::compat::Compat;
use crate::extractor::Shared;
use crate::hosts::Hosts;
use crate::problem::Problem;
use crate::{access, api, discovery, metrics, openapi, page};

/// Who may ask, and for what.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The rules of access.
    pub access: Access,
    /// The other systems' endpoints.
    pub compat: Compat,
}

/// All routes over `hosts`.
pub fn router(hosts: Hosts, settings: Settings) -> Router {
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
        .merge(figures());
    guarded(finish(routes, hosts), settings.access)
}

/// What scrapers read of `hosts`: metrics, and profiles as Go serves them. Nothing here switches
/// anything; a profile is a dump, which the host keeps.
pub fn scraped(hosts: Hosts, access: Access) -> Router {
    let go = Compat {
        go: true,
        ..Compat::NONE
    };
    let routes = figures().nest("/host/{host_pid}", go.routes());
    guarded(finish(routes, hosts), access)
}

/// Puts the rules of access around routes of any kind.
pub fn guarded(routes: Router, access: Access) -> Router {
    // Around the router, not in it: a token is taken off the path before a route is looked for.
    let guard = axum::middleware::from_fn_with_state(Arc::new(access), access::guard);
    Router::new().fallback_service(routes).layer(guard)
}

/// Metrics, of all hosts and of each, and where these are.
fn figures() -> Router<Shared> {
    Router::new()
        .route("/metrics", get(metrics::of_all))
        .route("/host/{host_pid}/metrics", get(metrics::of_host))
        .route("/targets", get(discovery::targets))
}

fn finish(routes: Router<Shared>, hosts: Hosts) -> Router {
    let shared: Shared = Arc::new(hosts);
    routes
        .fallback(|| async { Problem::not_found("there is no such page") })
        .with_state(shared)
}
