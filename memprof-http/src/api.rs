//! `/api/v1`: the plugin's messages as they are, and the kept dumps in every format.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, extract::DefaultBodyLimit};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::{Gateway, blocking};
use crate::problem::{Problem, Result};
use crate::report::View;
use crate::router::{Shared, To};
use crate::target::Answer;

/// Messages that change nothing.
const READING: &[&str] = &["status", "ledger", "doctor", "stats"];
/// Messages that change the host.
const CHANGING: &[&str] = &[
    "activate",
    "deactivate",
    "reset",
    "purge",
    "background_thread",
    "gdump",
];
/// More than the arguments of any message.
const ARGUMENTS: usize = 4096;

pub(crate) fn routes() -> Router<Shared> {
    let mut router = Router::new()
        .route("/api/v1/dump", post(dump))
        .route("/api/v1/dumps", get(dumps))
        .route("/api/v1/dumps/{id}", get(kept));
    for message in READING {
        router = router.route(&format!("/api/v1/{message}"), reading(message));
    }
    for message in CHANGING {
        router = router.route(&format!("/api/v1/{message}"), changing(message));
    }
    router.layer(DefaultBodyLimit::max(ARGUMENTS))
}

fn reading(message: &'static str) -> MethodRouter<Shared> {
    get(async move |To(host): To| reply(host.ask(message, &[]).await?))
}

fn changing(message: &'static str) -> MethodRouter<Shared> {
    post(async move |To(host): To, body: Bytes| send(&host, message, &body).await)
}

async fn send(host: &Gateway, message: &'static str, body: &[u8]) -> Result<Response> {
    let args = arguments(body)?;
    let args: Vec<_> = args.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    reply(host.ask(message, &args).await?)
}

/// The plugin's object as it is. What a doctor finds is an answer, whatever its status.
fn reply(answer: Answer) -> Result<Response> {
    let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
    let is_answer = body.is_some_and(|body| body.get("findings").is_some());
    if answer.status != 0 && !is_answer {
        return Err(Problem::of_answer(&answer));
    }
    Ok(([(CONTENT_TYPE, "application/json")], answer.body).into_response())
}

/// The arguments of a message: an object of texts, numbers and switches, or nothing.
fn arguments(body: &[u8]) -> Result<Vec<(String, String)>> {
    if body.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let object: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the body is no JSON object: {error}")))?;
    let word = |(key, value): (String, Value)| {
        let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        match value {
            Value::String(text) if is_key => Ok((key, text)),
            Value::Number(number) if is_key => Ok((key, number.to_string())),
            Value::Bool(on) if is_key => Ok((key, if on { "on" } else { "off" }.to_owned())),
            _ => Err(Problem::invalid(format!(
                "{key:?} is no argument with a plain value"
            ))),
        }
    };
    object.into_iter().map(word).collect()
}

async fn dump(To(host): To, body: Bytes) -> Result<Response> {
    // `dump` takes no arguments yet; one with any must not be merged with one without.
    if !arguments(&body)?.is_empty() {
        return send(&host, "dump", &body).await;
    }
    Ok(Json(&*host.dump().await?).into_response())
}

async fn dumps(To(host): To) -> Result<Response> {
    let mut list = host.tell("list", &[]).await?;
    Ok(Json(json!({ "dumps": list["dumps"].take() })).into_response())
}

#[derive(Deserialize)]
struct DumpId {
    id: String,
}

async fn kept(
    To(host): To,
    Path(DumpId { id }): Path<DumpId>,
    view: std::result::Result<Query<View>, QueryRejection>,
) -> Result<Response> {
    let invalid = |rejection: QueryRejection| Problem::invalid(rejection.body_text());
    let Query(view) = view.map_err(invalid)?;
    view.of_kept(&host, &id).await
}

/// The hosts that run, as `memprof ps` lists them.
pub(crate) async fn hosts(State(hosts): State<Shared>) -> Result<Response> {
    let list = blocking(move || -> Result<Vec<Value>> {
        let all = hosts.all()?;
        // One that just went away is not running.
        let rows = all.iter().filter_map(|host| row(host).ok());
        Ok(rows.collect())
    });
    let hosts = list.await??;
    Ok((StatusCode::OK, Json(json!({ "hosts": hosts }))).into_response())
}

fn row(host: &Gateway) -> Result<Value> {
    let info = host.target().host()?;
    let status = host.target().message("status", "")?;
    let status: Value = serde_json::from_slice(&status.body).unwrap_or_default();
    let allocators = status["allocators"].as_array();
    let allocators: Vec<_> = allocators.into_iter().flatten().map(allocator).collect();
    Ok(json!({
        "pid": info.pid,
        "name": info.name,
        "command": info.command,
        "started": info.started,
        "profiling": status["profiling"].as_str().unwrap_or("unavailable"),
        "allocators": allocators,
    }))
}

/// `jemalloc 5.3.0`: what stands behind the first dash is the commit.
fn allocator(allocator: &Value) -> String {
    let text = |key: &str| allocator[key].as_str().unwrap_or_default();
    let version = text("version").split('-').next().unwrap_or_default();
    format!("{} {version}", text("kind"))
}
