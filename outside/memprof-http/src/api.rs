//! Routes of `/api/v1`: forwards the plugin's messages, and serves kept dumps in every format.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, extract::DefaultBodyLimit};
use memprof_messages::{DumpList, Effect, MESSAGES, MessageSpec, OpenEnum, Profiling};
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::gateway::Gateway;
use crate::host_client::PluginReply;
use crate::hosts::{ListedHost, SilentHost};
use crate::problem::{Problem, Result};
use crate::report_query::ReportQuery;
use crate::request_arguments::RequestArguments;
use crate::request_host::{RequestHost, SharedHosts, discover_when_permitted};

/// Messages with a route of another name, or that are not just forwarded.
const SPECIAL_MESSAGES: [&str; 4] = ["dump", "list", "fetch", "help"];
/// Most bytes of a request body: more than the arguments of any message.
const MAX_BODY_BYTES: usize = 4096;

/// Returns the routes of one host below `/api/v1/`: one for each message of the plugin, and those of kept dumps.
pub(crate) fn routes() -> Router<SharedHosts> {
    let mut router = Router::new()
        .route("/api/v1/dump", post(take_dump))
        .route("/api/v1/dumps", get(list_kept_dumps))
        .route("/api/v1/dumps/{id}", get(serve_kept_dump));
    for message in forwarded_messages() {
        let route = match message.effect {
            Effect::ReadOnly => read_only_route(message.name),
            Effect::Mutating => mutating_route(message.name),
        };
        router = router.route(&format!("/api/v1/{}", message.name), route);
    }
    router.layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}

/// Returns the messages that have a route of their own name, which only forwards them to the plugin.
pub(crate) fn forwarded_messages() -> impl Iterator<Item = &'static MessageSpec> {
    let messages = MESSAGES.iter();
    messages.filter(|message| !SPECIAL_MESSAGES.contains(&message.name))
}

/// Returns the GET route of a message without side effects. `stats` is sent with `log=off`, unless the request has that
/// argument.
fn read_only_route(message: &'static str) -> MethodRouter<SharedHosts> {
    get(
        async move |RequestHost(host): RequestHost, mut arguments: RequestArguments| {
            if message == "stats" {
                // A page that polls every few seconds must not fill the host's log.
                arguments.set_default("log", "off");
            }
            forward_message(&host, message, &arguments).await
        },
    )
}

/// Returns the POST route of a message with side effects.
fn mutating_route(message: &'static str) -> MethodRouter<SharedHosts> {
    post(
        async move |RequestHost(host): RequestHost, arguments: RequestArguments| {
            forward_message(&host, message, &arguments).await
        },
    )
}

/// Sends a message to the plugin, and returns its reply as a response. Fails if the host does not answer, or its reply
/// is an error.
async fn forward_message(
    host: &Gateway,
    message: &'static str,
    arguments: &RequestArguments,
) -> Result<Response> {
    response_from_reply(host.send_message(message, &arguments.pairs()).await?)
}

/// The part of a forwarded reply that determines its status and content type.
#[derive(Deserialize)]
struct ReplyPeek {
    findings: Option<IgnoredAny>,
}

/// Returns the plugin's reply as a response, JSON or text. Fails with the error in the reply if the status is not 0.
/// Only a reply with `findings` (of `doctor`) is a success, whatever its status.
fn response_from_reply(reply: PluginReply) -> Result<Response> {
    let peek: Option<ReplyPeek> = serde_json::from_slice(&reply.body).ok();
    let is_finding = peek.as_ref().is_some_and(|peek| peek.findings.is_some());
    if reply.status != 0 && !is_finding {
        return Err(Problem::from_reply(&reply));
    }
    // `stats format=text` is not JSON.
    let content_type = match peek {
        Some(_) => "application/json",
        None => "text/plain; charset=utf-8",
    };
    Ok(([(CONTENT_TYPE, content_type)], reply.body).into_response())
}

/// Takes a dump, which the host keeps, or waits for the running one. A request with arguments always takes a new dump.
async fn take_dump(
    RequestHost(host): RequestHost,
    arguments: RequestArguments,
) -> Result<Response> {
    // A dump of another kind or of one allocator is not shared with other requests.
    if !arguments.is_empty() {
        return forward_message(&host, "dump", &arguments).await;
    }
    Ok(Json(&*host.take_dump().await?).into_response())
}

/// Lists the kept dumps, newest first.
async fn list_kept_dumps(RequestHost(host): RequestHost) -> Result<Response> {
    let dumps = host.request_kept_dumps().await?;
    Ok(Json(DumpList { dumps }).into_response())
}

#[derive(Deserialize)]
struct DumpId {
    id: String,
}

/// Serves a kept dump in the format that the query selects. Fails if a parameter is invalid, or the id is unknown.
async fn serve_kept_dump(
    RequestHost(host): RequestHost,
    Path(DumpId { id }): Path<DumpId>,
    view: std::result::Result<Query<ReportQuery>, QueryRejection>,
) -> Result<Response> {
    let invalid = |rejection: QueryRejection| Problem::invalid(rejection.body_text());
    let Query(view) = view.map_err(invalid)?;
    view.render_kept_dump(&host, &id).await
}

/// Lists the running hosts, like `memprof ps`: those that answer, and separately those that do not.
pub(crate) async fn list_hosts(State(hosts): State<SharedHosts>) -> Result<Response> {
    let (listed, silent) = discover_when_permitted(move || hosts.list()).await?;
    let hosts = listed.into_iter().map(HostRow::from_listed_host).collect();
    let silent = silent.into_iter().map(SilentRow::from).collect();
    Ok(Json(HostRows { hosts, silent }).into_response())
}

/// The hosts that answer, and those that do not.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HostRows {
    hosts: Vec<HostRow>,
    silent: Vec<SilentRow>,
}

/// A host that did not answer in time: it is stopped, or busy.
#[derive(Debug, Serialize, JsonSchema)]
struct SilentRow {
    /// Process id in the server's PID namespace.
    pid: u32,
    /// Name that it had when it answered, else its program's; empty if both are unknown.
    name: String,
    /// Reason for which it is not among the hosts.
    reason: String,
}

impl From<SilentHost> for SilentRow {
    fn from(SilentHost { pid, name, reason }: SilentHost) -> Self {
        Self { pid, name, reason }
    }
}

/// One host, as `memprof ps` lists it.
#[derive(Debug, Serialize, JsonSchema)]
struct HostRow {
    /// Process id in the server's PID namespace.
    pid: u32,
    /// Value of `[control] name`, or the program's name.
    name: String,
    /// Command line.
    command: String,
    /// Time at which its control socket was opened, in seconds since 1970 (UTC).
    started: u64,
    /// Whether allocations are sampled.
    profiling: OpenEnum<Profiling>,
    /// Name and version of each allocator, such as `jemalloc 5.3.0`.
    allocators: Vec<String>,
}

impl HostRow {
    /// Converts a host to a row of the list. A host that did not reply to `status` counts as one that cannot be
    /// profiled, without allocators.
    fn from_listed_host(host: ListedHost) -> Self {
        let ListedHost { pid, info, status } = host;
        let allocators = status.iter().flat_map(|status| &status.allocators);
        let allocators = allocators.map(ToString::to_string).collect();
        let profiling = status.map(|status| status.profiling);
        Self {
            pid,
            name: info.name,
            command: info.command,
            started: info.started,
            profiling: profiling.unwrap_or(Profiling::Unavailable.into()),
            allocators,
        }
    }
}
