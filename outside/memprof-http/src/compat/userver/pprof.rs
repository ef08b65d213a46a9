//! The later generation of userver's handler: errors have a status, and `heap`, `symbol` and `cmdline` are the pages
//! that `jeprof http://HOST/service/jemalloc/pprof/heap` reads.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::{Command, mallctl_error, run_jemalloc_command};
use crate::compat::command_line::read_command_line;
use crate::compat::pprof_heap::serve_pprof_heap;
use crate::compat::symbol::{self, MAX_BODY_BYTES};
use crate::gateway::Gateway;
use crate::problem::Result;
use crate::request_arguments::QueryParameters;
use crate::request_host::{RequestHost, SharedHosts};

/// Commands in the order in which userver lists them.
const COMMANDS: [&str; 10] = [
    "stat",
    "enable",
    "disable",
    "dump",
    "bg_threads_set_max",
    "bg_threads_enable",
    "bg_threads_disable",
    "heap",
    "cmdline",
    "symbol",
];

/// Text of userver for a service in which jemalloc cannot profile.
const PROFILING_UNAVAILABLE: &str = "'jemalloc' profiling is not available because the service \
    was not started with a 'MALLOC_CONF' environment variable that contain 'prof:true'\n";

/// Returns the routes of the commands, each also with a slash at its end.
pub(super) fn routes() -> Router<SharedHosts> {
    let commands = get(serve_page)
        .post(run_command)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    Router::new()
        .route("/service/jemalloc/pprof/{command}", commands.clone())
        .route("/service/jemalloc/pprof/{command}/", commands)
}

/// Serves the page that a GET names. A command that changes something needs a POST here, so that a link or its preview
/// changes nothing; userver also runs it on a GET.
async fn serve_page(
    RequestHost(host): RequestHost,
    Path(Command { command }): Path<Command>,
    headers: HeaderMap,
) -> Result<Response> {
    let page = match command.as_str() {
        "heap" => serve_pprof_heap(&host, &headers).await,
        // Empty options request jemalloc's full report.
        "stat" => host.stats_text(Some("")).await.map(String::into_response),
        "cmdline" => read_command_line(&host).await.map(String::into_response),
        "symbol" => Ok(symbol::SYMBOLS.into_response()),
        other if COMMANDS.contains(&other) => Ok(method_not_allowed_error(&Method::GET)),
        _ => Ok(unsupported_command_error()),
    };
    with_userver_errors(&command, page)
}

/// Runs the command in the path of a POST: `symbol`, or one that changes something or reads statistics. Replies with
/// status 405 to `heap` and `cmdline`, which take only GET, and with 404 to an unknown command.
async fn run_command(
    RequestHost(host): RequestHost,
    Path(Command { command }): Path<Command>,
    query: QueryParameters,
    body: Bytes,
) -> Result<Response> {
    match command.as_str() {
        "symbol" => serve_symbols(&host, &body).await,
        "heap" | "cmdline" => Ok(method_not_allowed_error(&Method::POST)),
        other => match run_jemalloc_command(&host, other, &query).await {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Ok(unsupported_command_error()),
            Err(problem) => with_userver_errors(other, Err(problem)),
        },
    }
}

/// Returns `reply`, but replaces an error of the plugin by userver's reply: status 503 if profiling is off for `enable`
/// and `heap`, else status 500. Errors that are not the plugin's are returned as they are.
fn with_userver_errors(command: &str, reply: Result<Response>) -> Result<Response> {
    match reply {
        Err(problem) if problem.is_profiling_off() && matches!(command, "enable" | "heap") => {
            let body = format!("{PROFILING_UNAVAILABLE}{}\n", problem.reason());
            let reason = [problem.reason_header()];
            Ok((StatusCode::SERVICE_UNAVAILABLE, reason, body).into_response())
        }
        Err(problem) if problem.is_host_error() => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Ok(mallctl_error(status, &problem))
        }
        reply => reply,
    }
}

/// Serves the names of the addresses in a body such as `0x4005d0+0x4005f7`. For a malformed body, replies with
/// userver's error, status 400.
async fn serve_symbols(host: &Gateway, body: &[u8]) -> Result<Response> {
    match symbol::symbolize_list(host, body, symbol::SymbolFormat::Userver).await {
        Ok(lines) => Ok(lines.into_response()),
        Err(problem) if problem.is_client_error() => {
            let reason = problem.reason();
            let body = format!("Request body contains an invalid address\n{reason}\n");
            Ok((StatusCode::BAD_REQUEST, body).into_response())
        }
        Err(problem) => Err(problem),
    }
}

/// Returns the reply 405 for a method that the command does not take.
fn method_not_allowed_error(method: &Method) -> Response {
    let body = format!("Unsupported method for this command: {method}\n");
    (StatusCode::METHOD_NOT_ALLOWED, body).into_response()
}

/// Returns the reply 404 for an unknown command, with a list of the commands.
fn unsupported_command_error() -> Response {
    let commands = COMMANDS.map(|command| format!("'{command}'")).join(", ");
    let body = format!("Unsupported command. Supported commands are: {commands}\n");
    (StatusCode::NOT_FOUND, body).into_response()
}
