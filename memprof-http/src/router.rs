//! The routes: those of a host, at the root for the only one and below `/host/PID` for each.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::routing::get;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::access::Access;
use crate::compat::Compat;
use crate::gateway::{Gateway, blocking};
use crate::hosts::Hosts;
use crate::problem::{Problem, Result};
use crate::{access, api, metrics, openapi, page};

/// Requests that look for hosts at a time.
static LOOKS: Semaphore = Semaphore::const_new(8);
/// How long one waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// What every handler can reach.
pub(crate) type Shared = Arc<Hosts>;

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
        let found = match (pid, hosts.single()) {
            (None, Some(only)) => Ok(only),
            (None, None) => look(move || hosts.only()).await?,
            (Some(Ok(pid)), _) => look(move || hosts.of_pid(pid)).await?,
            (Some(Err(_)), _) => Err(Problem::not_found("a host is named by its pid")),
        };
        found.map(Self)
    }
}

/// Looks for hosts, on a thread that may wait for them, when its turn has come.
pub(crate) async fn look<T: Send + 'static>(
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
