//! `memprof serve`: HTTP beside the hosts.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use memprof_http::{
    Compat, HostSelector, Hosts, ListenError, ListenOptions, RemoteHost, RouterSettings,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Outcome, USAGE, with_exit_code};
use crate::own_heap;
use crate::{completion, exec_fleet, output, target};

/// Requests that wait for hosts or make reports, at a time.
const BLOCKING: usize = 64;

/// How long a thread waits for more of these.
const IDLE: Duration = Duration::from_secs(1);

/// Serve a web page, an API and other profilers' endpoints over HTTP
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// The host: a pid, a name or a socket's path [default: all that run, below /host/PID/]
    #[arg(short, long, value_name = "TARGET", add = completion::targets())]
    target: Option<String>,

    /// Serve the profiles of many machines in this store, as `memprof agent` wrote them, in place of
    /// the hosts: `file:///DIRECTORY` or `s3://BUCKET/PREFIX`
    #[arg(long, value_name = "URL", conflicts_with_all = ["target", "compat"])]
    store: Option<String>,

    #[command(flatten)]
    place: ListenOptions,

    /// Which other systems' endpoints to serve [default: all; none with --allow-remote]
    #[arg(long, value_name = "SYSTEMS", value_enum, value_delimiter = ',')]
    compat: Option<Vec<CompatSystem>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompatSystem {
    Userver,
    Brpc,
    Libmtev,
    Greptimedb,
    Go,
    None,
}

pub(crate) fn run(args: &ServeArgs) -> Outcome {
    if args.store.is_some() {
        // What stands behind `serve` means the same there.
        let words: Vec<_> = env::args_os().skip(2).collect();
        return exec_fleet::run("serve", &words);
    }
    let (access, token) = args.place.access_with_new_token().map_err(refused)?;
    let settings = RouterSettings {
        access,
        compat: compat(args),
    };
    own_heap::map_large_blocks();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(IDLE)
        // It may have made a report.
        .on_thread_stop(own_heap::trim)
        .build()
        .context("failed to start")?;
    runtime.block_on(serve_until_signal(args, settings, token.as_deref()))?;
    // What still waits for a host must not keep this program.
    runtime.shutdown_background();
    Ok(0.into())
}

async fn serve_until_signal(
    args: &ServeArgs,
    settings: RouterSettings,
    token: Option<&str>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (listener, place) = args.place.listen(token).await?;
    output::print_stderr(&format!("memprof: serving {place}"));
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let router = memprof_http::router(hosts(args), settings);
    memprof_http::serve(listener, router, end).await;
    Ok(())
}

fn refused(error: ListenError) -> anyhow::Error {
    match error {
        ListenError::Exposed(_) => with_exit_code(USAGE, error.to_string()),
        error => error.into(),
    }
}

fn compat(args: &ServeArgs) -> Compat {
    let Some(systems) = &args.compat else {
        return if args.place.allow_remote {
            Compat::NONE
        } else {
            Compat::default()
        };
    };
    Compat {
        userver: systems.contains(&CompatSystem::Userver),
        brpc: systems.contains(&CompatSystem::Brpc),
        libmtev: systems.contains(&CompatSystem::Libmtev),
        greptimedb: systems.contains(&CompatSystem::Greptimedb),
        go: systems.contains(&CompatSystem::Go),
    }
}

fn hosts(args: &ServeArgs) -> Hosts {
    let wanted = match args.target.as_deref() {
        None => return Hosts::running(),
        Some(target) => match target::socket(target) {
            Some(path) => HostSelector::Socket(path),
            None => HostSelector::Named(target.to_owned()),
        },
    };
    Hosts::with_single(Arc::new(RemoteHost::new(wanted)))
}
