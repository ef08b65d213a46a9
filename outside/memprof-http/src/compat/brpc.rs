//! brpc's builtin services: `/pprof`, `/hotspots`, `/memory`, `/flags`.

mod flags;
mod hotspots;

use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;

use crate::compat::symbol;
use crate::gateway::{DumpReply, Gateway};
use crate::problem::{Problem, Result};
use crate::report::{ReportQuery, as_tcmalloc, new_dump_as_tcmalloc};
use crate::request_host::{RequestHost, SharedHosts};

const TEXT: (HeaderName, &str) = (CONTENT_TYPE, "text/plain");
/// What brpc prints for the letters of `malloc_stats_print` that are not given.
const STATS: &str = "Ja";
const GROWTH: [(&str, &str); 1] = [("kind", "growth")];

pub(super) fn routes() -> Router<SharedHosts> {
    Router::new()
        .route("/pprof/heap", get(heap))
        .route("/pprof/growth", get(growth))
        .route("/pprof/symbol", symbol::route())
        .route("/pprof/cmdline", get(symbol::command_line))
        .route("/memory", get(memory))
        .route("/flags", get(flags::all))
        .route("/flags/{flag}", get(flags::one))
        .route("/hotspots/heap", get(hotspots::heap))
        .route("/hotspots/growth", get(hotspots::growth))
}

/// brpc's error codes, and the status that goes with each.
#[derive(Clone, Copy)]
enum Code {
    NoSuchMethod,
    NotPermitted,
}

/// An error as brpc writes it, and the reason behind it.
fn failed(code: Code, text: &str, reason: Option<&Problem>) -> Response {
    let (status, number) = match code {
        Code::NoSuchMethod => (StatusCode::NOT_FOUND, 1002),
        Code::NotPermitted => (StatusCode::FORBIDDEN, 1),
    };
    let why = reason.map(|problem| format!("\n{}\n", problem.reason()));
    let body = format!("[E{number}]{text}{}", why.unwrap_or_default());
    (status, [TEXT], body).into_response()
}

fn heap_is_off(problem: &Problem) -> Response {
    let text = "Heap profiler is not enabled, (no MALLOC_CONF=prof:true in env)";
    failed(Code::NoSuchMethod, text, Some(problem))
}

/// What made the heap grow, which tcmalloc alone keeps.
async fn growth(RequestHost(host): RequestHost) -> Result<Response> {
    match growth_profile(&host).await {
        Ok(text) => Ok(([TEXT], text).into_response()),
        Err(problem) if problem.is_profiling_off() => Ok(growth_is_off(&problem)),
        Err(problem) => Err(problem),
    }
}

async fn growth_profile(host: &Gateway) -> Result<Body> {
    let dump = host.send_typed::<DumpReply>("dump", &GROWTH).await?;
    as_tcmalloc(host.open(&dump.fields.largest.id).await?).await
}

fn growth_is_off(problem: &Problem) -> Response {
    failed(
        Code::NoSuchMethod,
        "Growth profiler is not enabled",
        Some(problem),
    )
}

#[derive(Deserialize)]
struct Display {
    display: Option<String>,
    extra_options: Option<String>,
    opts: Option<String>,
}

/// `go tool pprof` asks the binary for names before it asks here, and that of Go 1.19 gets wrong ones
/// for programs that lld linked, as Rust's are. So it is given a profile that has its names.
fn is_go(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes);
    agent.is_some_and(|agent| agent.starts_with(b"Go-http-client/"))
}

async fn heap(
    RequestHost(host): RequestHost,
    headers: HeaderMap,
    Query(query): Query<Display>,
) -> Result<Response> {
    let display = query.display.as_deref().unwrap_or_default();
    let done = match display {
        "" if is_go(&headers) => {
            ReportQuery::default()
                .pprof_without_keeping(&host, None)
                .await
        }
        "" => new_dump_as_tcmalloc(&host)
            .await
            .map(|text| ([TEXT], text).into_response()),
        "stats" => stats(&host, query.opts.as_deref()).await,
        "text" | "svg" | "flamegraph" => {
            let mut view = ReportQuery::with_format(display);
            view.sample_type = sample_type(query.extra_options.as_deref());
            view.render_new_dump_or_flamegraph(&host).await
        }
        other => Err(Problem::invalid(format!("unknown display {other:?}"))
            .remedy("valid: text, svg, flamegraph, stats")),
    };
    match done {
        Err(problem) if problem.is_profiling_off() => Ok(heap_is_off(&problem)),
        done => done,
    }
}

/// jeprof's options, of which the values' kind is one; how they are written is not ours to change.
fn sample_type(options: Option<&str>) -> Option<String> {
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

async fn memory(RequestHost(host): RequestHost, Query(query): Query<Display>) -> Result<Response> {
    stats(&host, query.opts.as_deref()).await
}

async fn stats(host: &Gateway, opts: Option<&str>) -> Result<Response> {
    let opts = opts.filter(|opts| !opts.is_empty()).unwrap_or(STATS);
    let text = match host.stats_text(Some(opts)).await {
        // The letters are jemalloc's.
        Err(problem) if problem.kind() == "unsupported" => host.stats_text(None).await,
        text => text,
    };
    match text {
        Ok(text) => Ok(([TEXT], text).into_response()),
        Err(problem) if problem.is_profiling_off() => {
            let why = format!(
                "tcmalloc or jemalloc is not enabled\n{}\n",
                problem.reason()
            );
            Ok((StatusCode::FORBIDDEN, [TEXT], why).into_response())
        }
        Err(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_jeprof() {
        let check = |options: Option<&str>, expected: Option<&str>| {
            assert_eq!(sample_type(options).as_deref(), expected, "{options:?}");
        };
        check(None, None);
        check(Some("inuse_objects"), Some("inuse_objects"));
        check(Some("--alloc_space --show_bytes"), Some("alloc_space"));
        check(Some("show_bytes,drop_negative"), None);
    }
}
