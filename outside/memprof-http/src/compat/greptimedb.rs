//! GreptimeDB's `/debug/prof/mem`.

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use memprof_messages::Profiling;
use serde::Deserialize;
use serde_json::json;

use crate::problem::Problem;
use crate::report::render_uploaded_flamegraph;
use crate::report_query::ReportQuery;
use crate::request_arguments::parse_form;
use crate::request_host::{RequestHost, SharedHosts};

/// Most bytes of an uploaded dump.
const MAX_UPLOAD_BYTES: usize = 64 << 20;

/// Returns the routes of GreptimeDB's memory profiling.
pub(super) fn routes() -> Router<SharedHosts> {
    Router::new()
        .route("/debug/prof/mem", post(serve_profile))
        .route("/debug/prof/mem/status", get(serve_status))
        .route("/debug/prof/mem/activate", post(activate_profiling))
        .route("/debug/prof/mem/deactivate", post(deactivate_profiling))
        .route(
            "/debug/prof/mem/gdump",
            get(serve_gdump_status).post(set_gdump),
        )
        .route(
            "/debug/prof/mem/symbol",
            post(serve_uploaded_flamegraph).layer(DefaultBodyLimit::max(MAX_UPLOAD_BYTES)),
        )
}

type Result<T> = std::result::Result<T, GreptimeError>;

/// Error as JSON, with a status for which `curl -f` fails.
struct GreptimeError(Problem);

impl<E: Into<Problem>> From<E> for GreptimeError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for GreptimeError {
    /// Returns the error as JSON, with memprof's reason in a header. If profiling is off, status and text are those of
    /// GreptimeDB.
    fn into_response(self) -> Response {
        let reason = [self.0.reason_header()];
        let (status, error) = if self.0.is_profiling_off() {
            let error = "Memory profiling is not enabled".to_owned();
            (StatusCode::BAD_REQUEST, error)
        } else {
            (self.0.status, self.0.reason())
        };
        (status, reason, Json(json!({ "error": error }))).into_response()
    }
}

#[derive(Deserialize)]
struct Output {
    output: Option<String>,
}

/// Serves a new kept dump in the format that `output` selects: `text` (default), `proto` or `flamegraph`.
async fn serve_profile(
    RequestHost(host): RequestHost,
    Query(Output { output }): Query<Output>,
) -> Result<Response> {
    let format = match output.as_deref() {
        None | Some("text") => "heap",
        Some("proto") => "pprof",
        Some("flamegraph") => "flamegraph",
        Some(other) => {
            let problem = Problem::invalid(format!("unknown output {other:?}"))
                .remedy("valid outputs: text, proto, flamegraph");
            return Err(problem.into());
        }
    };
    Ok(ReportQuery::with_format(format)
        .render_new_dump(&host)
        .await?)
}

/// Serves whether profiling is active, as `{"active": …}`.
async fn serve_status(RequestHost(host): RequestHost) -> Result<Response> {
    let status = host.request_status().await?;
    Ok(active_reply(status.profiling == Profiling::Active))
}

/// Activates profiling. Fails with the plugin's error.
async fn activate_profiling(RequestHost(host): RequestHost) -> Result<&'static str> {
    host.send_expecting_success("activate", &[]).await?;
    Ok("Heap profiling activated")
}

/// Deactivates profiling. Fails with the plugin's error or, as GreptimeDB does, with status 400 if profiling is
/// unavailable.
async fn deactivate_profiling(RequestHost(host): RequestHost) -> Result<&'static str> {
    let status = host.request_status().await?;
    if status.profiling == Profiling::Unavailable {
        let reason = status.reason.unwrap_or_default();
        let problem = Problem::new(StatusCode::BAD_REQUEST, "unavailable", reason);
        return Err(problem.remedy(status.remedy.unwrap_or_default()).into());
    }
    host.send_expecting_success("deactivate", &[]).await?;
    Ok("Heap profiling deactivated")
}

/// Serves whether automatic dumps at new high-water marks of memory are on, as `{"active": …}`.
async fn serve_gdump_status(RequestHost(host): RequestHost) -> Result<Response> {
    let status = host.request_status().await?;
    Ok(active_reply(status.gdump.is_some()))
}

/// Returns `{"active": …}` as JSON. Scripts search for exactly this spacing.
fn active_reply(active: bool) -> Response {
    let body = format!("{{\"active\": {active}}}");
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Turns automatic dumps at new high-water marks of memory on or off. The body is a form with `activate=true` or
/// `activate=false`. Fails for another body, or with the plugin's error.
async fn set_gdump(RequestHost(host): RequestHost, form: Bytes) -> Result<&'static str> {
    let form = parse_form(form.trim_ascii());
    let activate = form.iter().find(|(name, _)| name == "activate");
    let (state, done) = match activate.map(|(_, value)| value.as_str()) {
        Some("true") => ("on", "gdump activated"),
        Some("false") => ("off", "gdump deactivated"),
        _ => {
            let problem = Problem::invalid("the body is not a form with activate")
                .remedy("valid: activate=true, activate=false");
            return Err(problem.into());
        }
    };
    host.send_expecting_success("gdump", &[("state", state)])
        .await?;
    Ok(done)
}

/// Serves the flamegraph of the dump in the request's body, with function names from the host's binaries.
async fn serve_uploaded_flamegraph(
    RequestHost(host): RequestHost,
    dump: Bytes,
) -> Result<Response> {
    Ok(render_uploaded_flamegraph(&host, dump).await?)
}
