//! `/api/v1`: the plugin's messages as they are, and the kept dumps in every format.

use axum::Json;
use axum::body::Bytes;
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
use serde_json::{Map, Value};

use crate::gateway::Gateway;
use crate::host_client::PluginReply;
use crate::hosts::ListedHost;
use crate::problem::{Problem, Result};
use crate::report::ReportQuery;
use crate::request_host::{RequestHost, SharedHosts, find_hosts};

/// Messages whose routes are not called like them, or do more than pass them on.
const OF_THEIR_OWN: [&str; 4] = ["dump", "list", "fetch", "help"];
/// More than the arguments of any message.
const ARGUMENTS: usize = 4096;

pub(crate) fn routes() -> Router<SharedHosts> {
    let mut router = Router::new()
        .route("/api/v1/dump", post(dump))
        .route("/api/v1/dumps", get(dumps))
        .route("/api/v1/dumps/{id}", get(kept_dump));
    for message in simple_messages() {
        let route = match message.effect {
            Effect::ReadOnly => read_route(message.name),
            Effect::Mutating => write_route(message.name),
        };
        router = router.route(&format!("/api/v1/{}", message.name), route);
    }
    router.layer(DefaultBodyLimit::max(ARGUMENTS))
}

/// The messages that are passed on as they are.
pub(crate) fn simple_messages() -> impl Iterator<Item = &'static MessageSpec> {
    let messages = MESSAGES.iter();
    messages.filter(|message| !OF_THEIR_OWN.contains(&message.name))
}

/// The arguments are the query's.
fn read_route(message: &'static str) -> MethodRouter<SharedHosts> {
    get(
        async move |RequestHost(host): RequestHost,
                    Query(mut args): Query<Vec<(String, String)>>| {
            args.iter().try_for_each(|(key, _)| check_key(key))?;
            if message == "stats" && !args.iter().any(|(key, _)| key == "log") {
                // A page that asks every few seconds must not fill the host's log.
                args.push(("log".to_owned(), "off".to_owned()));
            }
            ask(&host, message, &args).await
        },
    )
}

fn write_route(message: &'static str) -> MethodRouter<SharedHosts> {
    post(async move |RequestHost(host): RequestHost, body: Bytes| send(&host, message, &body).await)
}

async fn send(host: &Gateway, message: &'static str, body: &[u8]) -> Result<Response> {
    ask(host, message, &arguments(body)?).await
}

async fn ask(host: &Gateway, message: &'static str, args: &[(String, String)]) -> Result<Response> {
    let args: Vec<_> = args.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    reply(host.send(message, &args).await?)
}

/// What is looked at of a reply that is passed on as it is.
#[derive(Deserialize)]
struct ReplyPeek {
    findings: Option<IgnoredAny>,
}

/// The plugin's object as it is. What a doctor finds is an answer, whatever its status.
fn reply(answer: PluginReply) -> Result<Response> {
    let looked: Option<ReplyPeek> = serde_json::from_slice(&answer.body).ok();
    let is_finding = looked.as_ref().is_some_and(|of| of.findings.is_some());
    if answer.status != 0 && !is_finding {
        return Err(Problem::from_reply(&answer));
    }
    // `stats format=text` is no JSON.
    let content_type = match looked {
        Some(_) => "application/json",
        None => "text/plain; charset=utf-8",
    };
    Ok(([(CONTENT_TYPE, content_type)], answer.body).into_response())
}

/// The arguments of a message: an object of texts, numbers and switches, or nothing.
fn arguments(body: &[u8]) -> Result<Vec<(String, String)>> {
    if body.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let object: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the body is not a JSON object: {error}")))?;
    let word = |(key, value): (String, Value)| {
        check_key(&key)?;
        let value = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(on) => if on { "on" } else { "off" }.to_owned(),
            _ => {
                return Err(Problem::invalid(format!(
                    "the value of {key:?} is not plain"
                )));
            }
        };
        Ok((key, value))
    };
    object.into_iter().map(word).collect()
}

fn check_key(key: &str) -> Result<()> {
    let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    is_key
        .then_some(())
        .ok_or_else(|| Problem::invalid(format!("unknown argument {key:?}")))
}

async fn dump(RequestHost(host): RequestHost, body: Bytes) -> Result<Response> {
    // One of another kind, or of one allocator, is not what the others wait for.
    if !arguments(&body)?.is_empty() {
        return send(&host, "dump", &body).await;
    }
    Ok(Json(&*host.dump().await?).into_response())
}

async fn dumps(RequestHost(host): RequestHost) -> Result<Response> {
    let dumps = host.kept().await?;
    Ok(Json(DumpList { dumps }).into_response())
}

#[derive(Deserialize)]
struct DumpId {
    id: String,
}

async fn kept_dump(
    RequestHost(host): RequestHost,
    Path(DumpId { id }): Path<DumpId>,
    view: std::result::Result<Query<ReportQuery>, QueryRejection>,
) -> Result<Response> {
    let invalid = |rejection: QueryRejection| Problem::invalid(rejection.body_text());
    let Query(view) = view.map_err(invalid)?;
    view.render_kept_dump(&host, &id).await
}

/// The hosts that run, as `memprof ps` lists them.
pub(crate) async fn hosts(State(hosts): State<SharedHosts>) -> Result<Response> {
    let seen = find_hosts(move || hosts.list()).await?;
    let hosts = seen.into_iter().map(HostRow::of).collect();
    Ok(Json(HostRows { hosts }).into_response())
}

/// The hosts that answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HostRows {
    hosts: Vec<HostRow>,
}

/// One host, as `memprof ps` lists it.
#[derive(Debug, Serialize, JsonSchema)]
struct HostRow {
    /// Its process, as it is called here.
    pid: u32,
    /// `[control] name`, else its program's.
    name: String,
    /// Its command line.
    command: String,
    /// When its control socket was opened: seconds since 1970, UTC.
    started: u64,
    /// Whether allocations are sampled.
    profiling: OpenEnum<Profiling>,
    /// `jemalloc 5.3.0`, for each.
    allocators: Vec<String>,
}

impl HostRow {
    fn of(host: ListedHost) -> Self {
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
