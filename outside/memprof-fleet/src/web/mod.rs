//! `memprof serve --store`: a page and an API for the profiles in a store.

mod api;
mod page;
mod query;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use memprof_http::{serve, with_access};
use memprof_output::print_stderr;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::args::ServeArgs;
use crate::config::Config;
use crate::listen_error::listen_error;
use crate::store::ProfileStore;

/// Most queries that run at the same time: each may use a core, and memory for an hour's samples.
const MAX_QUERIES: usize = 2;

/// State that all requests share.
struct ServerState {
    /// URL of the store.
    store: String,
    /// Permits for queries.
    permits: Arc<Semaphore>,
}

/// Runs `memprof serve --store`: serves the page and the API until SIGTERM or SIGINT. Fails if the store's URL is
/// invalid or other machines can reach the address (exit code 2), or if the address cannot be listened on.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.store)?;
    // An invalid URL is reported before the server starts.
    drop(ProfileStore::open(&config.store)?);
    let access = args.listen.access_with_new_token();
    let (access, token) = access.map_err(|error| listen_error(error, None))?;
    let state = ServerState {
        store: config.store,
        permits: Arc::new(Semaphore::new(MAX_QUERIES)),
    };
    let routes = page::routes()
        .merge(api::routes())
        .with_state(Arc::new(state));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (listener, address) = args.listen.listen(token.as_deref()).await?;
        print_stderr(&format!("memprof: serving {address}"));
        let end = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        serve(listener, with_access(routes, access), end).await;
        anyhow::Ok(())
    })?;
    // A query that still runs must not delay the end of the program.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}
