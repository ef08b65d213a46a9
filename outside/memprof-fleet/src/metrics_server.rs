//! What an agent serves to scrapers: metrics and profiles of all hosts of its machine.

use std::future::pending;
use std::thread;

use memprof_http::{Hosts, ListenError, ListenOptions, scrape_router, serve};

use crate::config::Http;
use crate::output::{USAGE, coded, print_stderr};

/// Requests that wait for hosts at a time.
const BLOCKING: usize = 16;

/// Serves, on a thread of its own, for as long as this program runs.
pub(crate) fn serve_metrics(config: &Http) -> anyhow::Result<()> {
    let Some(listen) = config.listen else {
        return Ok(());
    };
    let place = ListenOptions {
        listen,
        socket: None,
        allow_remote: config.token_file.is_some(),
        token_file: config.token_file.clone(),
        allow_host: config.allow_host.clone(),
    };
    let access = place.access().map_err(refused)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .build()?;
    let (listener, address) = runtime.block_on(place.listen(None))?;
    print_stderr(&format!("memprof: metrics and profiles: serving {address}"));
    let router = scrape_router(Hosts::running(), access);
    thread::spawn(move || runtime.block_on(serve(listener, router, pending())));
    Ok(())
}

fn refused(error: ListenError) -> anyhow::Error {
    match error {
        ListenError::Exposed(address) => coded(
            USAGE,
            format!(
                "{address} can be reached by other machines: set `token_file` in [http] of the configuration, \
                 or listen on 127.0.0.1"
            ),
        ),
        error => error.into(),
    }
}
