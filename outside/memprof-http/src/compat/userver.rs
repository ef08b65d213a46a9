//! userver's `server::handlers::Jemalloc`, as two generations of it are documented: `POST
//! /service/jemalloc/prof/{command}` and, with statuses for errors and the protocol of pprof,
//! `/service/jemalloc/pprof/{command}`.

mod pprof;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;

use crate::gateway::Gateway;
use crate::problem::{Problem, Result};
use crate::request_arguments::QueryParameters;
use crate::request_host::{RequestHost, SharedHosts};

/// Returns the routes of userver's commands for jemalloc, each also with a slash at its end, as in userver by default.
pub(super) fn routes() -> Router<SharedHosts> {
    Router::new()
        .route("/service/jemalloc/prof/{command}", post(run_command))
        .route("/service/jemalloc/prof/{command}/", post(run_command))
        .merge(pprof::routes())
}

#[derive(Deserialize)]
struct Command {
    command: String,
}

/// Runs the command in the path. An unknown command and an error of the plugin are reported with status 200, as userver
/// does.
async fn run_command(
    RequestHost(host): RequestHost,
    Path(Command { command }): Path<Command>,
    query: QueryParameters,
) -> Result<Response> {
    match run_jemalloc_command(&host, &command, &query).await {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Ok("Unsupported command".into_response()),
        Err(problem) if problem.is_host_error() => Ok(mallctl_error(StatusCode::OK, &problem)),
        Err(problem) => Err(problem),
    }
}

/// Runs one of the commands that both generations of userver's handler have. Returns the reply, which for an invalid
/// parameter has status 400. `None` if `command` is unknown. Fails with the plugin's error.
async fn run_jemalloc_command(
    host: &Gateway,
    command: &str,
    query: &QueryParameters,
) -> Result<Option<Response>> {
    let text = match command {
        "enable" => send_and_reply_ok(host, "activate", &[]).await?,
        "disable" => send_and_reply_ok(host, "deactivate", &[]).await?,
        "dump" => host.take_dump().await.map(|_| "OK\n".to_owned())?,
        // Empty options request jemalloc's full report.
        "stat" => host.stats_text(Some("")).await?,
        "bg_threads_enable" => {
            send_and_reply_ok(host, "background_thread", &[("state", "on")]).await?
        }
        "bg_threads_disable" => {
            send_and_reply_ok(host, "background_thread", &[("state", "off")]).await?
        }
        "bg_threads_set_max" => match parse_thread_count(query.first_value("count")) {
            Ok(max) => send_and_reply_ok(host, "background_thread", &[("max", &max)])
                .await
                .map_err(Problem::with_einval_if_unavailable)?,
            Err(message) => {
                return Ok(Some((StatusCode::BAD_REQUEST, message).into_response()));
            }
        },
        _ => return Ok(None),
    };
    Ok(Some(text.into_response()))
}

/// Sends a message. Returns userver's text for success, `OK`. Fails with the plugin's error.
async fn send_and_reply_ok(
    host: &Gateway,
    message: &'static str,
    args: &[(&str, &str)],
) -> Result<String> {
    host.send_expecting_success(message, args).await?;
    Ok("OK\n".to_owned())
}

/// Checks the parameter `count`, the largest number of background threads, and returns it as text. If it is missing or
/// no number, fails with a text for the reply.
fn parse_thread_count(count: Option<&str>) -> Result<String, String> {
    let count = count.ok_or("missing 'count' argument")?;
    match count.parse::<u64>() {
        Ok(max) => Ok(max.to_string()),
        Err(message) => Err(format!("invalid 'count' value: {message}")),
    }
}

/// Returns the reply for an error of the plugin, as userver formats an error of jemalloc's `mallctl`: scripts read the
/// first line of the body. `status` is 200 in the first generation of userver's handler.
fn mallctl_error(status: StatusCode, problem: &Problem) -> Response {
    let (strerror, reason) = (problem.strerror(), problem.reason());
    let body = format!("mallctl() returned error: {strerror}\n{reason}\n");
    (status, [problem.reason_header()], body).into_response()
}
