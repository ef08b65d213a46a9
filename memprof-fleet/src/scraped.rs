//! What an agent serves to scrapers: metrics and profiles of all hosts of its machine.

use std::future::pending;
use std::thread;

use memprof_http::{Hosts, Place, PlaceError, scraped, serve};

use crate::config::Http;
use crate::output::{USAGE, coded, tell};

/// Requests that wait for hosts at a time.
const BLOCKING: usize = 16;

/// Serves, on a thread of its own, for as long as this program runs.
pub(crate) fn start(config: &Http) -> anyhow::Result<()> {
    let Some(listen) = config.listen else {
        return Ok(());
    };
    let place = Place {
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
    tell(&format!("memprof: metrics and profiles: serving {address}"));
    let router = scraped(Hosts::running(), access);
    thread::spawn(move || runtime.block_on(serve(listener, router, pending())));
    Ok(())
}

fn refused(error: PlaceError) -> anyhow::Error {
    match error {
        PlaceError::Exposed(address) => coded(
            USAGE,
            format!(
                "{address} can be reached by other machines: set `token_file` in [http] of the configuration, \
                 or listen on 127.0.0.1"
            ),
        ),
        error => error.into(),
    }
}
