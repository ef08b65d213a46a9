//! Work on any process of the machine: lists the processes, and runs memprof's commands on them as jobs.
//!
//! The routes are behind the same rules of access as all others. Only `memprof serve` has them, and not for clients on
//! other machines: who may use them may attach to what this server's user may.

mod action;
mod job;
mod job_list;
mod process_list;

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;

use self::job::JobRow;
use self::job_list::{JobList, JobRequest};
use self::process_list::ProcessList;
use crate::headers::untrusted_document_policy;
use crate::page;
use crate::problem::{Problem, Result};
use crate::request_host::SharedHosts;

/// Body of the page.
const INDEX: &str = include_str!("page/machine.html");
/// Most bytes of a request body.
const MAX_BODY_BYTES: usize = 4096;
/// Policy of a job's page, which has its script and style in itself.
const JOB_PAGE_POLICY: &str =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

/// The machine's processes, and the jobs on them.
#[derive(Clone, Debug)]
pub struct Machine(Arc<MachineState>);

#[derive(Debug)]
struct MachineState {
    processes: ProcessList,
    jobs: Arc<JobList>,
}

impl Machine {
    /// Creates the state without jobs. `program` is memprof's executable, which lists the processes and runs the jobs.
    pub fn new(program: PathBuf) -> Self {
        Self(Arc::new(MachineState {
            processes: ProcessList::new(program.clone()),
            jobs: Arc::new(JobList::new(program)),
        }))
    }

    /// Cancels all running jobs, and does not wait for their ends. A job that samples or searches a process first
    /// undoes its changes to the process. Called when the server ends.
    pub fn cancel_jobs(&self) {
        self.0.jobs.cancel_all();
    }

    /// Returns the routes of the page's files and of its API, relative to the page.
    pub(crate) fn routes(&self) -> Router<SharedHosts> {
        let api = Router::new()
            .route("/api/v1/processes", get(list_processes))
            .route("/api/v1/jobs", get(list_jobs).post(start_job))
            .route("/api/v1/jobs/{id}/cancel", post(cancel_job))
            .route("/api/v1/jobs/{id}/page", get(serve_job_page))
            .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
            .with_state(self.clone());
        page::machine_file_routes().merge(api)
    }
}

/// Serves the page of the machine's processes.
pub(crate) async fn serve_machine_page() -> Html<String> {
    Html(page::whole_page("memprof", "machine.js", INDEX))
}

/// Serves the processes that the server's user may inspect, as JSON of `memprof ps --all --json`.
async fn list_processes(State(machine): State<Machine>) -> Result<Response> {
    let listed = machine.0.processes.list().await?;
    Ok((
        [(CONTENT_TYPE, "application/json")],
        Bytes::from_owner(listed),
    )
        .into_response())
}

/// Jobs, newest first.
#[derive(Debug, Serialize)]
struct JobRows {
    jobs: Vec<JobRow>,
}

/// Lists the jobs, newest first.
async fn list_jobs(State(machine): State<Machine>) -> Json<JobRows> {
    let jobs = machine.0.jobs.rows();
    Json(JobRows { jobs })
}

/// Starts a job, and a task that enforces the limits of all jobs. The body is `{"pid": …, "name": …, "action": …}`.
/// Fails if the body is malformed, or the job cannot be started.
async fn start_job(State(machine): State<Machine>, body: Bytes) -> Result<Json<JobRow>> {
    let request: JobRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::invalid(format!("the body is no job: {error}")))?;
    let row = machine.0.jobs.start(&request)?;
    let jobs = Arc::clone(&machine.0.jobs);
    tokio::spawn(async move { jobs.poll_until_done().await });
    Ok(Json(row))
}

/// Cancels a job: its command undoes its changes to the process, and then ends. Replies before that. Fails if there is
/// no such job, or its command cannot be cancelled.
async fn cancel_job(State(machine): State<Machine>, Path(id): Path<u64>) -> Result<Json<JobRow>> {
    machine.0.jobs.cancel(id).map(Json)
}

/// Serves the HTML page that the command of a finished job wrote, with a policy for untrusted names. Fails if there is
/// no such job or page.
async fn serve_job_page(State(machine): State<Machine>, Path(id): Path<u64>) -> Result<Response> {
    let page = machine.0.jobs.read_page(id)?;
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (
            CONTENT_SECURITY_POLICY,
            untrusted_document_policy(JOB_PAGE_POLICY),
        ),
    ];
    Ok((headers, Bytes::from_owner(page)).into_response())
}
