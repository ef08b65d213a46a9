//! `memprof serve --store`: a page and an API of the profiles in a store.

mod api;
mod page;
mod query;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use memprof_http::{ListenError, serve, with_access};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::args::ServeArgs;
use crate::config::Config;
use crate::output::{USAGE, coded, print_stderr};
use crate::store::Store;

/// Questions that are answered at a time: each may take a core and the memory of an hour's samples.
const TURNS: usize = 2;

/// What every request can reach.
struct ServerState {
    store: String,
    turns: Arc<Semaphore>,
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.at)?;
    // What is wrong with the address is said now.
    drop(Store::open(&config.store)?);
    let (access, token) = args.place.access_with_new_token().map_err(refused)?;
    let served = ServerState {
        store: config.store,
        turns: Arc::new(Semaphore::new(TURNS)),
    };
    let routes = page::routes()
        .merge(api::routes())
        .with_state(Arc::new(served));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (listener, address) = args.place.listen(token.as_deref()).await?;
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
    // A question that is still being answered must not keep this program.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

fn refused(error: ListenError) -> anyhow::Error {
    match error {
        ListenError::Exposed(_) => coded(USAGE, error.to_string()),
        error => error.into(),
    }
}
