//! Scrape targets at `/targets`: the addresses of each host's metrics and profiles, for HTTP service discovery.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::{Extension, Json};
use serde::Serialize;

use crate::base_url::BaseUrl;
use crate::problem::Result;
use crate::request_host::{SharedHosts, discover_when_permitted};

/// Group of targets (Prometheus, `http_sd`): always one host.
#[derive(Serialize)]
pub(crate) struct TargetGroup {
    targets: [String; 1],
    labels: Labels,
}

#[derive(Serialize)]
struct Labels {
    /// Scheme of the address, where that is not http.
    #[serde(rename = "__scheme__", skip_serializing_if = "Option::is_none")]
    scheme: Option<&'static str>,
    /// Path of the host's metrics, for Prometheus.
    #[serde(rename = "__metrics_path__")]
    metrics_path: String,
    /// Prefix that Alloy puts before `/debug/pprof/allocs`.
    #[serde(rename = "__profile_path_prefix__")]
    profile_path_prefix: String,
    /// Name of the service, for Pyroscope.
    service_name: String,
    pid: String,
}

/// Serves the running hosts as scrape targets, also those that do not answer. The address of each target is that of
/// this server: `base`, if a proxy serves it, else the one in the request's `Host` header.
pub(crate) async fn serve_targets(
    State(hosts): State<SharedHosts>,
    base: Option<Extension<BaseUrl>>,
    headers: HeaderMap,
) -> Result<Json<Vec<TargetGroup>>> {
    let address = headers.get(HOST).and_then(|host| host.to_str().ok());
    let address = base.as_ref().map(|base| base.authority()).or(address);
    let address = address.unwrap_or_default().to_owned();
    let is_https = base.as_ref().is_some_and(|base| base.is_https());
    let base = base.as_ref().map_or("", |base| base.path()).to_owned();
    let found = discover_when_permitted(move || hosts.find_all()).await?;
    let groups = found.into_iter().map(|host| {
        let prefix = format!("{base}/host/{}", host.pid);
        TargetGroup {
            targets: [address.clone()],
            labels: Labels {
                scheme: is_https.then_some("https"),
                metrics_path: format!("{prefix}/metrics"),
                profile_path_prefix: prefix,
                service_name: host.name,
                pid: host.pid.to_string(),
            },
        }
    });
    Ok(Json(groups.collect()))
}
