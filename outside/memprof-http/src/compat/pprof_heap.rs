//! A new heap profile for jeprof and `go tool pprof`, as brpc and userver serve it.

use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};

use crate::compat::go::GoError;
use crate::gateway::Gateway;
use crate::problem::Result;
use crate::report::stream_new_dump_as_tcmalloc;
use crate::report_query::ReportQuery;

/// Returns whether the client is a Go program, as `go tool pprof` is; such a client needs a symbolized profile. It
/// prefers names from its local binary to those that the server's `symbol` endpoint would give, and Go 1.19 gets wrong
/// names for programs that lld linked, such as those in Rust.
fn is_go_client(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes);
    agent.is_some_and(|agent| agent.starts_with(b"Go-http-client/"))
}

/// Serves a new in-memory dump: as a symbolized pprof profile to Go's tools, else as tcmalloc's text. For Go's tools,
/// an error is a response in the form that they print. Only the error that profiling is off is returned: each system
/// has its own reply for it.
pub(super) async fn serve_pprof_heap(host: &Gateway, headers: &HeaderMap) -> Result<Response> {
    if is_go_client(headers) {
        let view = ReportQuery::default();
        let profile = view.render_in_memory_pprof(host, None).await;
        return match profile {
            Err(problem) if problem.is_profiling_off() => Err(problem),
            // Go's tools print the reason of a refusal only in this form.
            Err(problem) => Ok(GoError::from(problem).into_response()),
            profile => profile,
        };
    }
    let text = stream_new_dump_as_tcmalloc(host).await?;
    Ok(([(CONTENT_TYPE, "text/plain")], text).into_response())
}
