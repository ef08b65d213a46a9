//! brpc's `/hotspots/heap`: a redirect to the page for browsers, a report for curl.

use axum::http::StatusCode;
use axum::http::header::{ACCEPT, HeaderMap};
use axum::response::{IntoResponse, Redirect, Response};

use super::{BrpcError, GROWTH_ARGUMENTS, TEXT, brpc_error};
use crate::gateway::{DumpReply, Gateway};
use crate::problem::{Problem, Result};
use crate::report_query::ReportQuery;
use crate::request_arguments::QueryParameters;
use crate::request_host::RequestHost;

/// Serves a report of a new or a kept heap profile. Browsers are redirected to memprof's page, which shows the same
/// report, unless the query has the parameter `console`.
pub(super) async fn serve_heap(
    RequestHost(host): RequestHost,
    headers: HeaderMap,
    query: QueryParameters,
) -> Result<Response> {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_browser = accepts.is_some_and(|accept| accept.contains("text/html"));
    if is_browser && query.last_value("console").is_none() {
        return Ok(Redirect::to(&page_address(&query)).into_response());
    }
    match serve_report(&host, &query, &[]).await {
        Err(problem) if problem.is_profiling_off() => Ok(profiler_off_error("heap", &problem)),
        result => result,
    }
}

/// Serves a report of the heap growth of the largest allocator, from a new or a kept profile.
pub(super) async fn serve_growth(
    RequestHost(host): RequestHost,
    query: QueryParameters,
) -> Result<Response> {
    match serve_report(&host, &query, &GROWTH_ARGUMENTS).await {
        Err(problem) if problem.is_profiling_off() => Ok(profiler_off_error("growth", &problem)),
        result => result,
    }
}

/// Returns the reply of brpc's pages below `/hotspots` if `profiler` is off, with `problem` as the reason.
fn profiler_off_error(profiler: &str, problem: &Problem) -> Response {
    let reason = problem.reason();
    let body = format!("Error: {profiler} profiler is not enabled.\n{reason}\n");
    (StatusCode::FORBIDDEN, [TEXT], body).into_response()
}

/// Renders the kept dump in the parameter `view` or, without it, a new dump that is taken with the arguments `kind`. Of
/// the dumps of several allocators, renders the largest, because a page of brpc shows one. If the query has the
/// parameter `base`, the kept dump with that id is subtracted. `display_type` selects the format: by default a graph
/// for graphviz, which scripts pipe to dot. For an unknown format, replies with brpc's error.
async fn serve_report(
    host: &Gateway,
    query: &QueryParameters,
    kind: &[(&str, &str)],
) -> Result<Response> {
    let display = query.last_value("display_type").unwrap_or("dot");
    let format = match display.to_ascii_lowercase().as_str() {
        "dot" => "dot",
        "flame" => "flamegraph",
        "text" => "text",
        _ => {
            let text = format!("Invalid display_type={display}; valid: dot, flame, text\n");
            return Ok(brpc_error(BrpcError::InvalidArgument, &text, None));
        }
    };
    let mut view = ReportQuery::with_format(format);
    view.base = query.last_value("base").map(str::to_owned);
    if let Some(id) = query.last_value("view") {
        return view.render_kept_dump(host, id).await;
    }
    if kind.is_empty() {
        return view.render_new_dump(host).await;
    }
    let dump = host.send_and_parse_reply::<DumpReply>("dump", kind).await?;
    view.render_kept_dump(host, &dump.fields.largest.id).await
}

/// Returns the address, relative to this path, at which memprof's page shows the dumps in the parameters `view` and
/// `base`. Leaves out ids with unexpected characters: the address is sent in a header.
fn page_address(query: &QueryParameters) -> String {
    let is_id = |id: &&str| id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
    let state = ["view", "base"].into_iter().filter_map(|key| {
        let id = query.last_value(key).filter(is_id)?;
        Some(format!("{key}={id}"))
    });
    format!("../#{}", state.collect::<Vec<_>>().join("&"))
}
