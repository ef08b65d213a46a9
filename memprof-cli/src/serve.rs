//! `memprof serve`: HTTP beside the hosts.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use memprof_http::{Compat, Hosts, Place, PlaceError, Remote, Settings, Wanted};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Outcome, USAGE, coded};
use crate::heap;
use crate::{completion, fleet, output, target};

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
    place: Place,

    /// Which other systems' endpoints to serve [default: all; none with --allow-remote]
    #[arg(long, value_name = "SYSTEMS", value_enum, value_delimiter = ',')]
    compat: Option<Vec<System>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
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
        return fleet::run("serve", &words);
    }
    let (access, token) = args.place.access_with_token().map_err(refused)?;
    let settings = Settings {
        access,
        compat: compat(args),
    };
    heap::keep_small();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(IDLE)
        // It may have made a report.
        .on_thread_stop(heap::give_back)
        .build()
        .context("failed to start")?;
    runtime.block_on(serve_until_signal(args, settings, token.as_deref()))?;
    // What still waits for a host must not keep this program.
    runtime.shutdown_background();
    Ok(0.into())
}

async fn serve_until_signal(
    args: &ServeArgs,
    settings: Settings,
    token: Option<&str>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (listener, place) = args.place.listen(token).await?;
    output::tell(&format!("memprof: serving {place}"));
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

fn refused(error: PlaceError) -> anyhow::Error {
    match error {
        PlaceError::Exposed(_) => coded(USAGE, error.to_string()),
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
        userver: systems.contains(&System::Userver),
        brpc: systems.contains(&System::Brpc),
        libmtev: systems.contains(&System::Libmtev),
        greptimedb: systems.contains(&System::Greptimedb),
        go: systems.contains(&System::Go),
    }
}

fn hosts(args: &ServeArgs) -> Hosts {
    let wanted = match args.target.as_deref() {
        None => return Hosts::running(),
        Some(target) => match target::socket(target) {
            Some(path) => Wanted::Socket(path),
            None => Wanted::Called(target.to_owned()),
        },
    };
    Hosts::one(Arc::new(Remote::new(wanted)))
}
