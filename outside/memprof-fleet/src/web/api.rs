//! API `/api/v1`: the queries of `memprof fleet`, with JSON and files as responses.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query as Parameters, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use memprof_http::{FileFormat, FormatSource, Problem};
use memprof_output::{NO_DATA, UNREACHABLE, USAGE};
use memprof_report::Options;
use serde_json::{Value, json};

use super::ServerState;
use super::query::QueryParams;
use crate::query::processes::{processes_by_growth, summarize_processes};
use crate::query::result::{compare_builds, compare_windows, sum_profiles};
use crate::query::services::{inuse_history, summarize_services};
use crate::query::{Profile, ProfileQuery, Weighting};
use crate::store::ProfileStore;

/// Query parameters of a request, or the reason why they are invalid.
type QueryExtractor = Result<Parameters<QueryParams>, QueryRejection>;
type Server = State<Arc<ServerState>>;

/// Most processes in a response.
const MAX_PROCESSES: usize = 200;

/// Returns the routes of the API. Unknown paths get an error as JSON.
pub(super) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route(
            "/api/v1/services",
            get(async |server: Server, query: QueryExtractor| {
                serve_rows(server, query, |_, profiles| {
                    json!(summarize_services(profiles))
                })
                .await
            }),
        )
        .route(
            "/api/v1/processes",
            get(async |server: Server, query: QueryExtractor| {
                serve_rows(server, query, |_, profiles| {
                    first_rows_json(summarize_processes(profiles))
                })
                .await
            }),
        )
        .route(
            "/api/v1/growth",
            get(async |server: Server, query: QueryExtractor| {
                serve_rows(server, query, |_, profiles| {
                    first_rows_json(processes_by_growth(profiles))
                })
                .await
            }),
        )
        .route(
            "/api/v1/history",
            get(async |server: Server, query: QueryExtractor| {
                serve_rows(server, query, |query, profiles| {
                    json!(inuse_history(query, profiles))
                })
                .await
            }),
        )
        .route("/api/v1/profile", get(serve_profile))
        .fallback(async || Problem::not_found("there is no such page"))
}

/// Converts the first [`MAX_PROCESSES`] rows to JSON; the others are left out.
fn first_rows_json(mut rows: Vec<impl serde::Serialize>) -> Value {
    rows.truncate(MAX_PROCESSES);
    json!(rows)
}

/// Responds with JSON: the rows that `rows` computes from the selected profiles, which come without samples; the time
/// window; and the notes of the query. Responds with an error if a parameter is invalid, or there is no profile.
async fn serve_rows(
    State(server): Server,
    params: QueryExtractor,
    rows: impl FnOnce(&ProfileQuery, &[Profile]) -> Value + Send + 'static,
) -> Result<Json<Value>, Problem> {
    let Parameters(params) = params.map_err(|error| Problem::invalid(error.body_text()))?;
    let url = server.store.clone();
    let reply = run_query_with_permit(&server, move |store| {
        let query = params.to_query(store)?;
        let profiles = query.read_selected_profiles(params.build.as_deref());
        let rows = rows(&query, &profiles.map_err(problem_from_error)?);
        Ok(json!({
            "store": url,
            "from": query.from.to_rfc3339(),
            "to": query.to.to_rfc3339(),
            "rows": rows,
            "notes": query.notes.texts(),
        }))
    });
    reply.await.map(Json)
}

/// Responds with a sum of profiles, or a comparison of two builds or time windows, in the requested format. Responds
/// with an error if parameters are invalid or contradict each other, or there is no profile.
async fn serve_profile(State(server): Server, params: QueryExtractor) -> Result<Response, Problem> {
    let Parameters(params) = params.map_err(|error| Problem::invalid(error.body_text()))?;
    let format = FileFormat::from_name(params.format.as_deref().unwrap_or("text"))?;
    let FormatSource::Rendered(made) = format.source else {
        return Err(Problem::invalid("a sum of profiles is not a heap dump")
            .remedy("format=pprof is for other tools"));
    };
    let options = Options {
        format: made,
        sample_type: params.sample_type()?,
        ..Options::default()
    };
    let bytes = run_query_with_permit(&server, move |store| {
        let query = params.to_query(Arc::clone(&store))?;
        let build = params.build.as_deref();
        let result = match (build, params.base.as_deref(), params.base_query(store)?) {
            (_, None, None) => sum_profiles(&query, build, Weighting::Mean),
            (_, None, Some(base)) => compare_windows(&query, &base, build),
            (Some(build), Some(base), None) => compare_builds(&query, build, base),
            (None, Some(_), None) => {
                return Err(Problem::invalid("base is a build, and build is missing"));
            }
            (_, Some(_), Some(_)) => {
                return Err(Problem::invalid("base and base_at are two questions"));
            }
        };
        let result = result
            .map_err(problem_from_error)?
            .with_notes(query.notes.texts());
        result.render(&query, options).map_err(problem_from_error)
    });
    Ok(format.file_response("fleet", bytes.await?.into()))
}

/// Opens the store and runs `work` on it, on a thread that may block, as soon as a permit for one of
/// [`MAX_QUERIES`](super::MAX_QUERIES) queries is free. Fails if the store cannot be opened, or `work` fails or panics.
async fn run_query_with_permit<T: Send + 'static>(
    server: &ServerState,
    work: impl FnOnce(Arc<ProfileStore>) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = Arc::clone(&server.permits).acquire_owned().await;
    let url = server.store.clone();
    let result = tokio::task::spawn_blocking(move || {
        // The permit is held until the work ends, even if the client has closed the connection.
        let _permit = permit;
        work(Arc::new(
            ProfileStore::open(&url).map_err(problem_from_error)?,
        ))
    });
    let result = result.await;
    result.map_err(|error| Problem::internal(error.to_string()))?
}

/// Converts an error of a query to an HTTP error. The error's exit code determines the status.
fn problem_from_error(error: anyhow::Error) -> Problem {
    let (status, kind) = match crate::exit_code_of(&error) {
        NO_DATA => (StatusCode::NOT_FOUND, "no_data"),
        UNREACHABLE => (StatusCode::SERVICE_UNAVAILABLE, "store_unreachable"),
        USAGE => (StatusCode::BAD_REQUEST, "invalid_argument"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    };
    Problem::new(status, kind, format!("{error:#}"))
}
