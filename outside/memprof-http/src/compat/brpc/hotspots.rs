//! brpc's `/hotspots/heap`: a redirect to the page for browsers, the text of a report for curl.

use axum::extract::Query;
use axum::http::header::{ACCEPT, HeaderMap};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::{BrpcError, GROWTH, brpc_error, growth_off_error, heap_off_error};
use crate::gateway::DumpReply;
use crate::problem::Result;
use crate::report_query::ReportQuery;
use crate::request_host::RequestHost;

#[derive(Deserialize)]
pub(super) struct Parameters {
    /// Id of a kept dump; a new one is taken without it.
    view: Option<String>,
    base: Option<String>,
    display_type: Option<String>,
    console: Option<String>,
}

/// Serves a report of a new or a kept dump in the format that `display_type` selects. Browsers are redirected to the
/// page that shows it, unless they request `console`.
pub(super) async fn heap(
    RequestHost(host): RequestHost,
    headers: HeaderMap,
    Query(query): Query<Parameters>,
) -> Result<Response> {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_browser = accepts.is_some_and(|accept| accept.contains("text/html"));
    if is_browser && query.console.is_none() {
        return Ok(Redirect::to(&page_address(&query)).into_response());
    }
    let display = query.display_type.as_deref().unwrap_or("text");
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
    view.base = query.base;
    let result = match &query.view {
        Some(id) => view.render_kept_dump(&host, id).await,
        None => view.render_new_dump(&host).await,
    };
    match result {
        Err(problem) if problem.is_profiling_off() => Ok(heap_off_error(&problem)),
        result => result,
    }
}

/// Takes a growth profile, and serves the text report of the largest allocator.
pub(super) async fn growth(RequestHost(host): RequestHost) -> Result<Response> {
    let result = match host.send_typed::<DumpReply>("dump", &GROWTH).await {
        Ok(dump) => {
            ReportQuery::with_format("text")
                .render_kept_dump(&host, &dump.fields.largest.id)
                .await
        }
        Err(problem) => Err(problem),
    };
    match result {
        Err(problem) if problem.is_profiling_off() => Ok(growth_off_error(&problem)),
        result => result,
    }
}

/// Relative address at which memprof's page shows the same report. Ids with unexpected characters are left out.
fn page_address(query: &Parameters) -> String {
    let is_id = |id: &&String| id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
    let pairs = [("view", &query.view), ("base", &query.base)];
    let state = pairs.into_iter().filter_map(|(key, id)| {
        let id = id.as_ref().filter(is_id)?;
        Some(format!("{key}={id}"))
    });
    format!("../#{}", state.collect::<Vec<_>>().join("&"))
}
