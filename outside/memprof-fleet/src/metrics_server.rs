//! HTTP server of an agent for scrapers: metrics and profiles of all hosts of its machine.

use std::future::pending;
use std::thread;

use memprof_http::{Hosts, ListenOptions, scrape_router, serve};
use memprof_output::print_stderr;

use crate::config::Http;
use crate::listen_error::listen_error;

/// Most requests that wait for hosts at the same time.
const MAX_BLOCKING_REQUESTS: usize = 16;

/// Starts the server on a thread that runs as long as this program. Does nothing if the configuration has no address to
/// listen on. Fails if the address or the token cannot be used, or other machines could reach the address without a
/// token.
pub(crate) fn serve_metrics(config: &Http) -> anyhow::Result<()> {
    let Some(listen) = config.listen.clone() else {
        return Ok(());
    };
    let options = ListenOptions {
        listen,
        socket: None,
        allow_remote: config.token_file.is_some(),
        token_file: config.token_file.clone(),
        allow_host: config.allow_host.clone(),
        base_url: None,
        trust_proxy: Vec::new(),
    };
    let remedy = "set `token_file` in [http] of the configuration, or listen on 127.0.0.1";
    let access = options.access();
    let access = access.map_err(|error| listen_error(error, Some(remedy)))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_REQUESTS)
        .build()?;
    let (listener, address) = runtime.block_on(options.listen(None))?;
    print_stderr(&format!("memprof: metrics and profiles: serving {address}"));
    let router = scrape_router(Hosts::with_discovered(), access);
    thread::spawn(move || runtime.block_on(serve(listener, router, pending())));
    Ok(())
}
