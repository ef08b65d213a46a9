//! The example host with its own HTTP server, in which it mounts memprof's router: the page, the API, and the paths of
//! existing scripts, without a second process. It leaks like `rust_host`.
//!
//! ```text
//! _RJEM_MALLOC_CONF=prof:true,prof_active:false rust_http --config host.toml --listen 127.0.0.1:8080 &
//! curl -X POST http://127.0.0.1:8080/api/v1/activate && sleep 5
//! go tool pprof -top http://127.0.0.1:8080/debug/pprof/heap
//! ```
//!
//! Symbols are looked up in this process, which temporarily needs memory. If that is a problem, serve HTTP by `memprof
//! serve`.

#[path = "../../rust/src/jemalloc.rs"]
mod jemalloc;
#[path = "../../rust/src/logger.rs"]
mod logger;
#[path = "../../rust/src/work.rs"]
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use axum::Router;
use axum::routing::get;
use memprof_host::{Config, Host, HostProgram};
use memprof_http::{Hosts, InProcessHost, Listener, RouterSettings};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const NAME: &str = "rust_http";
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    match run_host() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the host and its HTTP server until SIGTERM. Fails if the config is invalid, or if the address cannot be
/// listened on.
fn run_host() -> anyhow::Result<()> {
    let (config, address) = parse_arguments()?;
    let config = Config::read(&config)?;
    let level = config.log.level().map_err(anyhow::Error::msg)?;
    logger::init_logger(level)?;

    let mut program = HostProgram::new(NAME, VERSION);
    program.jemalloc = Some(jemalloc::jemalloc_functions());
    let host = Arc::new(Host::start(&config, program)?);
    let worker = work::start_worker()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve_http(address, Arc::clone(&host)))?;
    worker.stop();
    Ok(())
}

/// Serves HTTP at `address` until SIGTERM. Fails if the address cannot be listened on.
async fn serve_http(address: SocketAddr, host: Arc<Host>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(address).await?;
    log::info!("serving http://{}/", listener.local_addr()?);
    let end = async {
        terminate.recv().await;
    };
    memprof_http::serve(Listener::from_tcp(listener), router(host), end).await;
    Ok(())
}

/// Returns the program's routes. All other paths are memprof's.
fn router(host: Arc<Host>) -> Router {
    let this_process = Arc::new(InProcessHost::new(host, NAME, VERSION));
    let memprof = memprof_http::router(Hosts::with_single(this_process), RouterSettings::default());
    Router::new()
        .route("/hello", get(async || "hello\n"))
        .fallback_service(memprof)
}

/// Parses the command line: the config file, and the address to listen on, by default a free port of 127.0.0.1. Fails
/// for other arguments.
fn parse_arguments() -> anyhow::Result<(PathBuf, SocketAddr)> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--config", config] => Ok((config.into(), SocketAddr::from(([127, 0, 0, 1], 0)))),
        ["--config", config, "--listen", address] => {
            let address = address.parse().with_context(|| address.to_owned())?;
            Ok((config.into(), address))
        }
        _ => bail!("usage: rust_http --config FILE [--listen 127.0.0.1:PORT]"),
    }
}
