//! brpc's built-in services: `/pprof`, `/hotspots`, `/memory`, `/flags`.

mod flags;
mod hotspots;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use crate::compat::command_line::serve_command_line;
use crate::compat::pprof_heap::serve_pprof_heap;
use crate::compat::symbol::{self, SymbolFormat};
use crate::gateway::{DumpReply, Gateway};
use crate::problem::{Problem, Result};
use crate::report::stream_as_tcmalloc;
use crate::report_query::ReportQuery;
use crate::request_arguments::QueryParameters;
use crate::request_host::{RequestHost, SharedHosts};

const TEXT: (HeaderName, &str) = (CONTENT_TYPE, "text/plain");
/// Options of `malloc_stats_print` that brpc uses if none are given.
const DEFAULT_STATS_OPTIONS: &str = "Ja";
/// Arguments of `dump` for a profile of heap growth.
const GROWTH_ARGUMENTS: [(&str, &str); 1] = [("kind", "growth")];

/// Returns the routes of the services, each also with a slash at its end. They take every method, except
/// `/pprof/symbol`: GET and POST. Of a repeated parameter, the last value counts.
pub(super) fn routes() -> Router<SharedHosts> {
    let services = [
        ("/pprof/heap", any(serve_heap)),
        ("/pprof/growth", any(serve_growth)),
        (
            "/pprof/symbol",
            symbol::symbolizing_route(SymbolFormat::Brpc),
        ),
        ("/pprof/cmdline", any(serve_command_line)),
        ("/memory", any(serve_memory)),
        ("/flags", any(flags::serve_flags)),
        ("/flags/{flag}", any(flags::serve_or_set_flag)),
        ("/hotspots/heap", any(hotspots::serve_heap)),
        ("/hotspots/growth", any(hotspots::serve_growth)),
    ];
    let routes = services.into_iter();
    routes.fold(Router::new(), |router, (path, service)| {
        router
            .route(path, service.clone())
            .route(&format!("{path}/"), service)
    })
}

/// Error codes of brpc, each with its HTTP status.
#[derive(Clone, Copy)]
enum BrpcError {
    NoSuchMethod,
    NotPermitted,
    InvalidArgument,
}

/// Returns an error as brpc formats it, with one of brpc's error codes (`ENOMETHOD` is 1002), followed by the reason if
/// there is one.
fn brpc_error(code: BrpcError, text: &str, reason: Option<&Problem>) -> Response {
    let (status, number) = match code {
        BrpcError::NoSuchMethod => (StatusCode::NOT_FOUND, 1002),
        BrpcError::NotPermitted => (StatusCode::FORBIDDEN, 1),
        BrpcError::InvalidArgument => (StatusCode::BAD_REQUEST, 22),
    };
    let reason = reason.map(|problem| format!("\n{}\n", problem.reason()));
    let body = format!("[E{number}]{text}{}", reason.unwrap_or_default());
    (status, [TEXT], body).into_response()
}

/// Returns brpc's reply for a server without heap profiling, with `problem` as the reason.
fn heap_off_error(problem: &Problem) -> Response {
    let text = "Heap profiler is not enabled, (no MALLOC_CONF=prof:true in env)";
    brpc_error(BrpcError::NoSuchMethod, text, Some(problem))
}

/// Serves the profile of heap growth, which only tcmalloc records.
async fn serve_growth(RequestHost(host): RequestHost) -> Result<Response> {
    match stream_new_growth_profile(&host).await {
        Ok(text) => Ok(([TEXT], text).into_response()),
        Err(problem) if problem.is_profiling_off() => Ok(growth_off_error(&problem)),
        Err(problem) => Err(problem),
    }
}

/// Takes a growth profile, which the host keeps, and streams it as tcmalloc's text. Of several allocators, only the
/// largest one's profile is streamed.
async fn stream_new_growth_profile(host: &Gateway) -> Result<Body> {
    let dump = host
        .send_and_parse_reply::<DumpReply>("dump", &GROWTH_ARGUMENTS)
        .await?;
    stream_as_tcmalloc(host, host.open_kept_dump(&dump.fields.largest.id).await?).await
}

/// Returns brpc's reply for a server without growth profiling, with `problem` as the reason.
fn growth_off_error(problem: &Problem) -> Response {
    brpc_error(
        BrpcError::NoSuchMethod,
        "Growth profiler is not enabled",
        Some(problem),
    )
}

/// Serves `/pprof/heap`: without `display`, a new dump in the form that jeprof or Go's pprof reads; with `text`, `svg`
/// or `flamegraph`, a report of a new kept dump; with `stats`, the allocators' statistics. If profiling is off, replies
/// as brpc does.
async fn serve_heap(
    RequestHost(host): RequestHost,
    headers: HeaderMap,
    query: QueryParameters,
) -> Result<Response> {
    let display = query.last_value("display").unwrap_or_default();
    let done = match display {
        "" => serve_pprof_heap(&host, &headers).await,
        "stats" => serve_stats(&host, query.last_value("opts")).await,
        "text" | "svg" | "flamegraph" => {
            let mut view = ReportQuery::with_format(display);
            view.sample_type = first_sample_type(query.last_value("extra_options"));
            view.render_new_dump_or_flamegraph(&host).await
        }
        other => Err(Problem::invalid(format!("unknown display {other:?}"))
            .remedy("valid: text, svg, flamegraph, stats")),
    };
    match done {
        Err(problem) if problem.is_profiling_off() => Ok(heap_off_error(&problem)),
        done => done,
    }
}

/// Returns the first sample type among jeprof's options, such as `--inuse_objects`. Any character but letters, digits
/// and `_` ends a word. `None` if there is no sample type.
fn first_sample_type(options: Option<&str>) -> Option<String> {
    let options = options.unwrap_or_default();
    let mut words = options.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let known = [
        "inuse_space",
        "inuse_objects",
        "alloc_space",
        "alloc_objects",
    ];
    words.find(|word| known.contains(word)).map(str::to_owned)
}

/// Serves `/memory`: the allocators' statistics, with the options of jemalloc in the parameter `opts`.
async fn serve_memory(RequestHost(host): RequestHost, query: QueryParameters) -> Result<Response> {
    serve_stats(&host, query.last_value("opts")).await
}

/// Serves the statistics of all allocators as text. `opts` are options of `malloc_stats_print`,
/// [`DEFAULT_STATS_OPTIONS`] if there are none; they are ignored if an allocator does not support them. If no allocator
/// has statistics, replies with status 403, as brpc does.
async fn serve_stats(host: &Gateway, opts: Option<&str>) -> Result<Response> {
    let opts = opts
        .filter(|opts| !opts.is_empty())
        .unwrap_or(DEFAULT_STATS_OPTIONS);
    let text = match host.stats_text(Some(opts)).await {
        // The options apply to jemalloc only.
        Err(problem) if problem.kind() == "unsupported" => host.stats_text(None).await,
        text => text,
    };
    match text {
        Ok(text) => Ok(([TEXT], text).into_response()),
        Err(problem) if problem.is_profiling_off() => {
            let text = format!(
                "tcmalloc or jemalloc is not enabled\n{}\n",
                problem.reason()
            );
            Ok((StatusCode::FORBIDDEN, [TEXT], text).into_response())
        }
        Err(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_type_is_found_in_jeprof_options() {
        let check = |options: Option<&str>, expected: Option<&str>| {
            assert_eq!(
                first_sample_type(options).as_deref(),
                expected,
                "{options:?}"
            );
        };
        check(None, None);
        check(Some("inuse_objects"), Some("inuse_objects"));
        check(Some("--alloc_space --show_bytes"), Some("alloc_space"));
        check(Some("show_bytes,drop_negative"), None);
    }
}
