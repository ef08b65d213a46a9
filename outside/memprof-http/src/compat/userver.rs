//! userver's `server::handlers::Jemalloc`: `POST /service/jemalloc/prof/{command}`.

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

/// Returns the route of userver's commands for jemalloc.
pub(super) fn routes() -> Router<SharedHosts> {
    Router::new().route("/service/jemalloc/prof/{command}", post(run_command))
}

#[derive(Deserialize)]
struct Command {
    command: String,
}

/// Runs the command in the path. An unknown one is reported with status 200, as userver does.
async fn run_command(
    RequestHost(host): RequestHost,
    Path(Command { command }): Path<Command>,
    query: QueryParameters,
) -> Result<Response> {
    let done = match command.as_str() {
        "enable" => send_ok_text(&host, "activate", &[]).await,
        "disable" => send_ok_text(&host, "deactivate", &[]).await,
        "dump" => host.take_dump().await.map(|_| "OK\n".to_owned()),
        "stat" => host.stats_text(Some("")).await,
        "bg_threads_enable" => send_ok_text(&host, "background_thread", &[("state", "on")]).await,
        "bg_threads_disable" => send_ok_text(&host, "background_thread", &[("state", "off")]).await,
        "bg_threads_set_max" => match parse_thread_count(query.first_value("count")) {
            Ok(max) => send_ok_text(&host, "background_thread", &[("max", &max)])
                .await
                .map_err(Problem::with_invalid_value),
            Err(message) => return Ok((StatusCode::BAD_REQUEST, message).into_response()),
        },
        _ => Ok("Unsupported command".to_owned()),
    };
    match done {
        Ok(text) => Ok(text.into_response()),
        Err(problem) if problem.is_host_error() => Ok(error_response(&problem)),
        Err(problem) => Err(problem),
    }
}

/// Sends a message. Returns userver's text for success, `OK`; the reply is ignored unless it is an error.
async fn send_ok_text(
    host: &Gateway,
    message: &'static str,
    args: &[(&str, &str)],
) -> Result<String> {
    host.send_ok(message, args).await?;
    Ok("OK\n".to_owned())
}

/// Checks the parameter `count`, the largest number of threads, and returns it as text. The error, if it is missing or
/// no number, is the text of the reply.
fn parse_thread_count(count: Option<&str>) -> Result<String, String> {
    let count = count.ok_or("missing 'count' argument")?;
    match count.parse::<u64>() {
        Ok(max) => Ok(max.to_string()),
        Err(message) => Err(format!("invalid 'count' value: {message}")),
    }
}

/// Returns the reply for an error: scripts read the first line of the body, and the status has always been 200.
fn error_response(problem: &Problem) -> Response {
    let (strerror, reason) = (problem.strerror(), problem.reason());
    let body = format!("mallctl() returned error: {strerror}\n{reason}\n");
    ([problem.reason_header()], body).into_response()
}
