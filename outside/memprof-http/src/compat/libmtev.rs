//! libmtev's `/mtev/heap_profile` and `/mtev/memory.json`.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use memprof_messages::{AllocatorKind, AllocatorStatus, JemallocOptions};

use crate::gateway::Gateway;
use crate::problem::{Problem, Result};
use crate::report::stream_dump;
use crate::request_arguments::QueryParameters;
use crate::request_host::{RequestHost, SharedHosts};

/// Returns the routes of libmtev's memory endpoints.
pub(super) fn routes() -> Router<SharedHosts> {
    Router::new()
        .route("/mtev/heap_profile", get(serve_or_switch_profiling))
        .route("/mtev/memory.json", get(serve_jemalloc_stats))
}

const TEXT_TYPE: (axum::http::HeaderName, &str) = (CONTENT_TYPE, "text/plain");
const DUMP_TYPE: (axum::http::HeaderName, &str) =
    (CONTENT_TYPE, "application/x-jemalloc-heap-profile");

/// Without parameters, serves the state of profiling. `active=true` activates profiling, any other value of `active`
/// deactivates it. Without `active`, `trigger_dump=true` takes and serves a new dump. Replies with status 500 if the
/// process has no jemalloc, or the plugin fails.
async fn serve_or_switch_profiling(
    RequestHost(host): RequestHost,
    query: QueryParameters,
) -> Result<Response> {
    let allocators = host.request_status().await?.allocators;
    if !allocators
        .iter()
        .any(|each| each.kind == AllocatorKind::Jemalloc)
    {
        let message = "libjemalloc is not loaded, cannot heap profile\n";
        return Ok((StatusCode::INTERNAL_SERVER_ERROR, [TEXT_TYPE], message).into_response());
    }
    let done = match (
        query.first_value("active"),
        query.first_value("trigger_dump"),
    ) {
        (Some("true"), _) => activate_profiling(&host).await,
        (Some(_), _) => deactivate_profiling(&host).await,
        (None, Some("true")) => serve_new_dump(&host).await,
        (None, _) => Ok(([TEXT_TYPE], profiling_state_text(&allocators)).into_response()),
    };
    match done {
        Err(problem) if problem.is_host_error() => Ok(mallctl_error_response(&problem)),
        done => done,
    }
}

/// Takes a dump, which the host keeps, and serves it. Of several allocators, only the largest one's file is served.
async fn serve_new_dump(host: &Gateway) -> Result<Response> {
    let dump = host.take_dump().await?;
    let dump = host.open_kept_dump(&dump.fields.largest.id).await?;
    Ok(([DUMP_TYPE], stream_dump(dump).await?).into_response())
}

/// Activates profiling, and returns libmtev's text for success.
async fn activate_profiling(host: &Gateway) -> Result<Response> {
    host.send_expecting_success("activate", &[]).await?;
    Ok(([TEXT_TYPE], "Profiling is activated\n").into_response())
}

/// Deactivates profiling, and returns libmtev's text for success.
async fn deactivate_profiling(host: &Gateway) -> Result<Response> {
    host.send_expecting_success("deactivate", &[]).await?;
    Ok(([TEXT_TYPE], "Profiling is deactivated\n").into_response())
}

/// Formats the state of profiling as libmtev does, with a remedy if no jemalloc has `opt.prof`.
fn profiling_state_text(allocators: &[AllocatorStatus]) -> String {
    let any = |is: fn(&JemallocOptions) -> bool| {
        let jemallocs = allocators.iter().filter_map(|each| each.jemalloc.as_ref());
        jemallocs.into_iter().any(is)
    };
    let prof = any(|jemalloc| jemalloc.opt_prof);
    let remedy = if prof {
        ""
    } else {
        "# needs MALLOC_CONF=\"prof:true\"\n"
    };
    format!(
        "opt.prof: {prof}\n{remedy}prof.active: {}\nprof.thread_active_init: {}\n",
        allocators.iter().any(|each| each.prof_active),
        any(|jemalloc| jemalloc.prof_thread_active_init)
    )
}

/// Returns the reply for an error of the plugin: status 500, with the text of the error of `mallctl` in the first line,
/// and the plugin's reason in the second line and in a header.
fn mallctl_error_response(problem: &Problem) -> Response {
    let body = format!("{}\n{}\n", problem.strerror(), problem.reason());
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    (status, [TEXT_TYPE], [problem.reason_header()], body).into_response()
}

/// Serves jemalloc's statistics as JSON, or an empty object if there is no jemalloc with statistics.
async fn serve_jemalloc_stats(RequestHost(host): RequestHost) -> Result<Response> {
    let json = match host.stats_json().await {
        Ok(json) => json,
        // There is no jemalloc.
        Err(problem) if problem.is_profiling_off() => "{}\n".to_owned(),
        Err(problem) => return Err(problem),
    };
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}
