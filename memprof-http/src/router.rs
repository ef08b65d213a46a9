//! The routes: those of a host, at the root for the only one and below `/host/PID` for each.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::access::Access;
use crate::compat::Compat;
use crate::extractor::Shared;
use crate::hosts::Hosts;
use crate::problem::Problem;
use crate::{access, api, metrics, openapi, page};

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
    let of_host = of_host(settings.compat);
    let shared: Shared = Arc::new(hosts);
    let routes = Router::new()
        .route("/", get(page::index))
        .merge(of_host.clone())
        .route("/api/v1/hosts", get(api::hosts))
        .route("/api/v1/openapi.json", get(openapi::document))
        .route("/host/{host_pid}", get(page::with_slash))
        .route("/host/{host_pid}/", get(page::index))
        .nest("/host/{host_pid}", of_host)
        .fallback(|| async { Problem::not_found("there is no such page") })
        .with_state(shared);
    // Around the router, not in it: a token is taken off the path before a route is looked for.
    let guard = axum::middleware::from_fn_with_state(Arc::new(settings.access), access::guard);
    Router::new().fallback_service(routes).layer(guard)
}

/// The routes of one host.
fn of_host(compat: Compat) -> Router<Shared> {
    page::routes()
        .merge(api::routes())
        .merge(compat.routes())
        .route("/metrics", get(metrics::of_host))
}
