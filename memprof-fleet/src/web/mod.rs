//! `memprof serve --store`: a page and an API of the profiles in a store.

mod api;
mod page;
mod query;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use memprof_http::{PlaceError, guarded, serve};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::args::ServeArgs;
use crate::config::Config;
use crate::output::{USAGE, coded, tell};
use crate::store::Store;

/// Questions that are answered at a time: each may take a core and the memory of an hour's samples.
const TURNS: usize = 2;

/// What every request can reach.
struct Served {
    store: String,
    turns: Arc<Semaphore>,
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.at)?;
    // What is wrong with the address is said now.
    drop(Store::open(&config.store)?);
    let (access, token) = args.place.access_with_token().map_err(refused)?;
    let served = Served {
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
        tell(&format!("memprof: serving {address}"));
        let end = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        serve(listener, guarded(routes, access), end).await;
        anyhow::Ok(())
    })?;
    // A question that is still being answered must not keep this program.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

fn refused(error: PlaceError) -> anyhow::Error {
    match error {
        PlaceError::Exposed(_) => coded(USAGE, error.to_string()),
        error => error.into(),
    }
}
