//! Endpoints that existing scripts call: heap profiling as in five other systems, unchanged.

mod brpc;
mod command_line;
mod failure;
mod go;
mod greptimedb;
mod libmtev;
mod pprof_heap;
mod symbol;
mod userver;

use axum::Router;
use serde::Deserialize;

use crate::request_host::SharedHosts;

/// Other systems whose endpoints are served. Their paths do not collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compat {
    /// `/service/jemalloc/prof/…`
    pub userver: bool,
    /// `/pprof/…`, `/hotspots/…`, `/memory`, `/flags/…`
    pub brpc: bool,
    /// `/mtev/…`
    pub libmtev: bool,
    /// `/debug/prof/mem…`
    pub greptimedb: bool,
    /// `/debug/pprof/…`, which Go serves and Alloy, Parca and Pyroscope scrape.
    pub go: bool,
}

impl Default for Compat {
    /// Enables all systems.
    fn default() -> Self {
        Self {
            userver: true,
            brpc: true,
            libmtev: true,
            greptimedb: true,
            go: true,
        }
    }
}

impl Compat {
    /// Disables all systems.
    pub const NONE: Self = Self {
        userver: false,
        brpc: false,
        libmtev: false,
        greptimedb: false,
        go: false,
    };

    /// Returns the routes of the enabled systems, relative to the path of one host.
    pub(crate) fn routes(self) -> Router<SharedHosts> {
        let groups = [
            (self.userver, userver::routes as fn() -> Router<SharedHosts>),
            (self.brpc, brpc::routes),
            (self.libmtev, libmtev::routes),
            (self.greptimedb, greptimedb::routes),
            (self.go, go::routes),
        ];
        let served = groups.into_iter().filter(|(is_on, _)| *is_on);
        served.fold(Router::new(), |router, (_, routes)| router.merge(routes()))
    }
}
