//! Routes of the server: those of a host are at the root if there is only one, and below `/host/PID` for each.

use std::sync::Arc;

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;

use crate::access::Access;
use crate::compat::Compat;
use crate::hosts::Hosts;
use crate::machine::Machine;
use crate::problem::Problem;
use crate::request_host::SharedHosts;
use crate::{access, api, machine, metrics, openapi, page, scrape_targets};

/// Access rules and optional endpoints of a router.
#[derive(Clone, Debug, Default)]
pub struct RouterSettings {
    /// Rules of access.
    pub access: Access,
    /// Endpoints of other systems.
    pub compat: Compat,
    /// The page of the machine's processes, and its jobs. `None`: there is no such page.
    pub machine: Option<Machine>,
}

/// Returns all routes of memprof, guarded by the rules of access in `settings`. The routes of a host are at the root,
/// for the only host, and below `/host/PID`. The routes for the machine's processes are there only if `settings` has a
/// machine.
pub fn router(hosts: Hosts, settings: RouterSettings) -> Router {
    let host_routes = page::host_file_routes()
        .merge(api::routes())
        .merge(settings.compat.routes());
    let links_machine = settings.machine.is_some();
    let index = get(async move || page::host_page(links_machine));
    let routes = Router::new()
        .route("/", index.clone())
        .merge(host_routes.clone())
        .route("/api/v1/hosts", get(api::list_hosts))
        .route("/api/v1/openapi.json", get(openapi::serve_openapi_document))
        .route("/host/{host_pid}", get(page::redirect_to_slash))
        .route("/host/{host_pid}/", index)
        .nest("/host/{host_pid}", host_routes)
        .merge(metrics_routes());
    let routes = match settings.machine {
        Some(machine) => routes
            .route("/machine", get(async || Redirect::permanent("machine/")))
            .route("/machine/", get(machine::serve_machine_page))
            .nest("/machine", machine.routes()),
        None => routes,
    };
    with_access(add_fallbacks_and_state(routes, hosts), settings.access)
}

/// Returns the routes that scrapers read: metrics of `hosts`, and profiles in the form in which Go programs serve them.
/// Requests change nothing in a host; a profile is a new dump that is only in memory.
pub fn scrape_router(hosts: Hosts, access: Access) -> Router {
    let go = Compat {
        go: true,
        ..Compat::NONE
    };
    let routes = metrics_routes().nest("/host/{host_pid}", go.routes());
    with_access(add_fallbacks_and_state(routes, hosts), access)
}

/// Applies the rules of access to `routes`, which get paths without the token.
pub fn with_access(routes: Router, access: Access) -> Router {
    // Around the router, not in it: the token is removed from the path before routing.
    let guard = axum::middleware::from_fn_with_state(Arc::new(access), access::guard_access);
    Router::new().fallback_service(routes).layer(guard)
}

/// Returns the routes of the metrics of all hosts and of each, and of the list of scrape targets.
fn metrics_routes() -> Router<SharedHosts> {
    Router::new()
        .route("/metrics", get(metrics::serve_all_metrics))
        .route("/host/{host_pid}/metrics", get(metrics::serve_host_metrics))
        .route("/targets", get(scrape_targets::serve_targets))
}

/// Adds the shared state `hosts`, the reply 404 for unknown paths, and the reply 405 for methods that a path does not
/// take.
fn add_fallbacks_and_state(routes: Router<SharedHosts>, hosts: Hosts) -> Router {
    let shared: SharedHosts = Arc::new(hosts);
    routes
        .fallback(|| async { Problem::not_found("there is no such page") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .with_state(shared)
}
