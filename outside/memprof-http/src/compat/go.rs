//! The heap profiles of Go's `net/http/pprof`.

use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::time::sleep;

use crate::compat::symbol;
use crate::gateway::Gateway;
use crate::problem::{Problem, Result};
use crate::report::{PendingDump, ReportQuery, new_dump_as_tcmalloc};
use crate::request_host::{RequestHost, SharedHosts};

/// Longest profile in seconds: proxies close requests that are open longer.
const MAX_SECONDS: u64 = 600;

pub(super) fn routes() -> Router<SharedHosts> {
    Router::new()
        .route("/debug/pprof/", get(async |_: RequestHost| Html(INDEX)))
        .route("/debug/pprof/heap", get(heap))
        .route("/debug/pprof/allocs", get(allocs))
        .route("/debug/pprof/symbol", symbol::route())
        .route("/debug/pprof/cmdline", get(symbol::command_line))
}

const INDEX: &str = "<!doctype html>\n<html lang=\"en\">\n<title>/debug/pprof/</title>\n\
    <h1>/debug/pprof/</h1>\n<ul>\n\
    <li><a href=\"heap?debug=1\">heap</a>: what is alive\n\
    <li><a href=\"allocs?debug=1\">allocs</a>: what was allocated since profiling began\n\
    <li><a href=\"cmdline\">cmdline</a>\n</ul>\n</html>\n";

#[derive(Deserialize)]
struct Parameters {
    debug: Option<u32>,
    seconds: Option<u64>,
}

/// Serves a heap profile, with bytes in use as the default type.
async fn heap(
    RequestHost(host): RequestHost,
    Query(parameters): Query<Parameters>,
) -> Result<Response> {
    profile(&host, &parameters, "inuse_space").await
}

/// Serves a heap profile with the allocated bytes as the default type or, if they were not counted (`prof_accum`), with
/// the bytes in use.
async fn allocs(
    RequestHost(host): RequestHost,
    Query(parameters): Query<Parameters>,
) -> Result<Response> {
    match profile(&host, &parameters, "alloc_space").await {
        Err(problem) if problem.is_client_error() => {
            profile(&host, &parameters, "inuse_space").await
        }
        profile => profile,
    }
}

/// Serves a new profile as pprof, as the difference over `seconds`, or as text with `debug`. `seconds` wins over
/// `debug`; it also delays the reply.
async fn profile(host: &Gateway, parameters: &Parameters, sample_type: &str) -> Result<Response> {
    let view = ReportQuery {
        sample_type: Some(sample_type.to_owned()),
        ..ReportQuery::default()
    };
    match (parameters.seconds, parameters.debug) {
        (Some(seconds @ 1..=MAX_SECONDS), _) => {
            let before = PendingDump::take_in_memory(host).await?;
            sleep(Duration::from_secs(seconds)).await;
            view.render_in_memory_pprof(host, Some(before)).await
        }
        (Some(1..), _) => {
            let message = format!("seconds is at most {MAX_SECONDS}");
            Err(Problem::invalid(message))
        }
        (_, Some(1..)) => {
            let text = new_dump_as_tcmalloc(host).await?;
            Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
        }
        _ => view.render_in_memory_pprof(host, None).await,
    }
}
