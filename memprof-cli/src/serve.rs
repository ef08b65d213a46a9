//! `memprof serve`: HTTP beside the hosts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use memprof_http::{Hosts, Listener, Remote, Wanted, router, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Outcome;

/// Requests that wait for hosts or make reports, at a time.
const BLOCKING: usize = 32;

/// Serve the page, the API and what existing scripts call, over HTTP
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// The host: a pid, a name or a socket's path [default: all that run]
    #[arg(short, long, value_name = "TARGET")]
    target: Option<String>,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Listen on this Unix socket instead
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,
}

pub(crate) fn run(args: &ServeArgs) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .build()
        .context("failed to start")?;
    runtime.block_on(serve_until_signal(args))?;
    // What still waits for a host must not keep this program.
    runtime.shutdown_background();
    Ok(0.into())
}

async fn serve_until_signal(args: &ServeArgs) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (listener, place) = listen(args).await?;
    eprintln!("memprof: serving {place}");
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve(listener, router(hosts(args)), end).await;
    if let Some(socket) = &args.socket {
        std::fs::remove_file(socket).with_context(|| socket.display().to_string())?;
    }
    Ok(())
}

fn hosts(args: &ServeArgs) -> Hosts {
    let wanted = match args.target.as_deref() {
        None => return Hosts::running(),
        Some(path) if path.contains('/') => Wanted::Socket(path.into()),
        Some(name) => Wanted::Called(name.to_owned()),
    };
    Hosts::one(Arc::new(Remote::new(wanted)))
}

async fn listen(args: &ServeArgs) -> anyhow::Result<(Listener, String)> {
    if let Some(path) = &args.socket {
        let failed = || format!("failed to listen at {}", path.display());
        let listener = Listener::unix(path).with_context(failed)?;
        return Ok((listener, describe(path)));
    }
    let failed = || format!("failed to listen at {}", args.listen);
    let listener = TcpListener::bind(args.listen).await.with_context(failed)?;
    let place = format!("http://{}/", listener.local_addr().with_context(failed)?);
    Ok((Listener::Tcp(listener), place))
}

fn describe(path: &Path) -> String {
    format!(
        "at {}: curl --unix-socket {0} http://localhost/",
        path.display()
    )
}
