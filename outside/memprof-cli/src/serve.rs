//! `memprof serve`: an HTTP server in front of the hosts.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use memprof_http::{
    Compat, HostSelector, Hosts, ListenError, ListenOptions, Machine, RemoteHost, RouterSettings,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Outcome, USAGE, with_exit_code};
use crate::own_heap;
use crate::{completion, exec_fleet, output, target};

/// Largest number of requests that wait for hosts or write reports at the same time.
const MAX_BLOCKING_THREADS: usize = 64;

/// Time for which an idle thread waits for such a request.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Serve a web page, an API and other profilers' endpoints over HTTP
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// The host: a pid, a name or a socket's path [default: all that run, below /host/PID/]
    #[arg(short, long, value_name = "TARGET", add = completion::target_completer())]
    target: Option<String>,

    /// Serve the profiles of many machines in this store, as `memprof agent` wrote them, in place of
    /// the hosts: `file:///DIRECTORY` or `s3://BUCKET/PREFIX`
    #[arg(long, value_name = "URL", conflicts_with_all = ["target", "compat"])]
    store: Option<String>,

    #[command(flatten)]
    listen_options: ListenOptions,

    /// Serve the endpoints of these other systems, separated by commas [default: all; none with --allow-remote]
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

/// Runs `memprof serve`: serves until a signal ends it. With `--store`, `memprof-fleet` serves in place of this
/// program.
pub(crate) fn run(args: &ServeArgs) -> Outcome {
    if args.store.is_some() {
        // The arguments after `memprof serve` have the same meaning there.
        let options: Vec<_> = env::args_os().skip(2).collect();
        return exec_fleet::run("serve", &options);
    }
    let (access, token) = args
        .listen_options
        .access_with_new_token()
        .map_err(listen_error)?;
    let settings = RouterSettings {
        access,
        compat: compat_endpoints(args),
        machine: machine_to_offer(args),
    };
    own_heap::make_malloc_map_large_blocks();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        // The thread may have written a report.
        .on_thread_stop(own_heap::release_free_pages)
        .build()
        .context("failed to start")?;
    let machine = settings.machine.clone();
    runtime.block_on(serve_until_signal(args, settings, token.as_deref()))?;
    if let Some(machine) = machine {
        machine.cancel_jobs();
    }
    // Requests that still wait for a host must not keep this program running.
    runtime.shutdown_background();
    Ok(0.into())
}

/// Serves the hosts over HTTP until SIGINT or SIGTERM. `token` is an access token that was made for this run, which
/// becomes part of the printed address; `None` if the user gave one, or access needs none.
async fn serve_until_signal(
    args: &ServeArgs,
    settings: RouterSettings,
    token: Option<&str>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (listener, address) = args.listen_options.listen(token).await?;
    output::print_stderr(&format!("memprof: serving {address}"));
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let router = memprof_http::router(hosts_to_serve(args), settings);
    memprof_http::serve(listener, router, end).await;
    Ok(())
}

/// Converts an error of listening. If the server would be reachable for others without access rules, it is a usage
/// error.
fn listen_error(error: ListenError) -> anyhow::Error {
    match error {
        ListenError::Exposed(_) => with_exit_code(USAGE, error.to_string()),
        error => error.into(),
    }
}

/// Returns the endpoints of other systems to serve: those in `--compat`; without it none if remote clients are allowed,
/// else the default.
fn compat_endpoints(args: &ServeArgs) -> Compat {
    let Some(systems) = &args.compat else {
        return if args.listen_options.allow_remote {
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

/// Returns the page of the machine's processes, whose jobs attach to processes. `None` if only one host is served, or
/// if other machines may connect, also through a proxy.
fn machine_to_offer(args: &ServeArgs) -> Option<Machine> {
    let options = &args.listen_options;
    let is_proxied = options.base_url.is_some() || !options.trust_proxy.is_empty();
    let is_offered = args.target.is_none() && !options.allow_remote && !is_proxied;
    // This path leads to the running program, even after an update has replaced its file.
    is_offered.then(|| Machine::new(PathBuf::from("/proc/self/exe")))
}

/// Returns the hosts to serve: the one in `--target`, else all that run.
fn hosts_to_serve(args: &ServeArgs) -> Hosts {
    let selector = match args.target.as_deref() {
        None => return Hosts::with_discovered(),
        Some(target) => match target::socket_path(target) {
            Some(path) => HostSelector::Socket(path),
            None => HostSelector::Named(target.to_owned()),
        },
    };
    Hosts::with_single(Arc::new(RemoteHost::new(selector)))
}
