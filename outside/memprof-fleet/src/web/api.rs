//! `/api/v1`: the questions of `memprof fleet`, as JSON and files.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query as Parameters, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use memprof_http::{FileFormat, FormatSource, Problem};
use memprof_report::Options;
use serde_json::{Value, json};

use super::ServerState;
use super::query::QueryParams;
use crate::output::{NO_DATA, UNREACHABLE, USAGE, code_of};
use crate::query::processes::{by_growth, processes};
use crate::query::result::{compare_builds, compare_windows, sum_profiles};
use crate::query::services::{history, services};
use crate::query::{Profile, ProfileQuery, Weighting};
use crate::store::Store;

type QueryExtractor = Result<Parameters<QueryParams>, QueryRejection>;
type Server = State<Arc<ServerState>>;

/// Processes that are listed.
const LISTED: usize = 200;

pub(super) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route(
            "/api/v1/services",
            get(async |server: Server, query: QueryExtractor| {
                listed(server, query, |_, profiles| json!(services(profiles))).await
            }),
        )
        .route(
            "/api/v1/processes",
            get(async |server: Server, query: QueryExtractor| {
                listed(server, query, |_, profiles| first(processes(profiles))).await
            }),
        )
        .route(
            "/api/v1/growth",
            get(async |server: Server, query: QueryExtractor| {
                listed(server, query, |_, profiles| first(by_growth(profiles))).await
            }),
        )
        .route(
            "/api/v1/history",
            get(async |server: Server, query: QueryExtractor| {
                listed(server, query, |asked, profiles| {
                    json!(history(asked, profiles))
                })
                .await
            }),
        )
        .route("/api/v1/profile", get(profile))
        .fallback(async || Problem::not_found("there is no such page"))
}

fn first(mut rows: Vec<impl serde::Serialize>) -> Value {
    rows.truncate(LISTED);
    json!(rows)
}

/// Rows that profiles are enough for, without their samples.
async fn listed(
    State(served): Server,
    query: QueryExtractor,
    rows: impl FnOnce(&ProfileQuery, &[Profile]) -> Value + Send + 'static,
) -> Result<Json<Value>, Problem> {
    let Parameters(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let url = served.store.clone();
    let reply = in_turn(&served, move |store| {
        let asked = query.to_query(store)?;
        let profiles = asked.profiles(query.build.as_deref());
        let rows = rows(&asked, &profiles.map_err(problem)?);
        Ok(json!({
            "store": url,
            "from": asked.from.text(),
            "to": asked.to.text(),
            "rows": rows,
            "notes": asked.notes.texts(),
        }))
    });
    reply.await.map(Json)
}

/// The sum of profiles, or how it differs from another one, in any format.
async fn profile(State(served): Server, query: QueryExtractor) -> Result<Response, Problem> {
    let Parameters(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let format = FileFormat::from_name(query.format.as_deref().unwrap_or("text"))?;
    let FormatSource::Rendered(made) = format.source else {
        return Err(Problem::invalid("a sum of profiles is not a heap dump")
            .remedy("format=pprof is for other tools"));
    };
    let options = Options {
        format: made,
        sample_type: query.sample_type()?,
        ..Options::default()
    };
    let bytes = in_turn(&served, move |store| {
        let asked = query.to_query(Arc::clone(&store))?;
        let build = query.build.as_deref();
        let answer = match (build, query.base.as_deref(), query.base_query(store)?) {
            (_, None, None) => sum_profiles(&asked, build, Weighting::Mean),
            (_, None, Some(before)) => compare_windows(&asked, &before, build),
            (Some(build), Some(base), None) => compare_builds(&asked, build, base),
            (None, Some(_), None) => {
                return Err(Problem::invalid("base is a build, and build is missing"));
            }
            (_, Some(_), Some(_)) => {
                return Err(Problem::invalid("base and base_at are two questions"));
            }
        };
        let answer = answer.map_err(problem)?.with_notes(asked.notes.texts());
        answer.render(&asked, options).map_err(problem)
    });
    Ok(format.reply("fleet", bytes.await?.into()))
}

/// Answers on a thread that may block, when it is this question's turn.
async fn in_turn<T: Send + 'static>(
    served: &ServerState,
    answer: impl FnOnce(Arc<Store>) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let turn = Arc::clone(&served.turns).acquire_owned().await;
    let url = served.store.clone();
    let answered = tokio::task::spawn_blocking(move || {
        // Also when whoever asked has left: the work goes on.
        let _turn = turn;
        answer(Arc::new(Store::open(&url).map_err(problem)?))
    });
    let answered = answered.await;
    answered.map_err(|error| Problem::internal(error.to_string()))?
}

fn problem(error: anyhow::Error) -> Problem {
    let (status, kind) = match code_of(&error) {
        NO_DATA => (StatusCode::NOT_FOUND, "no_data"),
        UNREACHABLE => (StatusCode::SERVICE_UNAVAILABLE, "store_unreachable"),
        USAGE => (StatusCode::BAD_REQUEST, "invalid_argument"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    };
    Problem::new(status, kind, format!("{error:#}"))
}
