//! `memprof serve`: HTTP beside the hosts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use memprof_http::{Access, Admits, Compat, Hosts, Listener, Remote, Settings, Token, Wanted};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Outcome, USAGE, coded};
use crate::heap;
use crate::{completion, output, target};

/// Requests that wait for hosts or make reports, at a time.
const BLOCKING: usize = 64;

/// How long a thread waits for more of these.
const IDLE: Duration = Duration::from_secs(1);

/// Serve a page, an API and what existing scripts call, over HTTP
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// The host: a pid, a name or a socket's path [default: all that run, below /host/PID/]
    #[arg(short, long, value_name = "TARGET", add = completion::targets())]
    target: Option<String>,

    /// Where to listen; an address that other machines reach needs --allow-remote and --token-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Listen on this Unix socket instead, for this user alone
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,

    /// Listen where other machines reach it
    #[arg(long, requires = "token_file")]
    allow_remote: bool,

    /// Answer only who brings the token in this file: as `Authorization: Bearer TOKEN`, or below
    /// /t/TOKEN/ [default: you and root need none, others a new one, which is in the address that
    /// this prints]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// A name by which clients call this server, besides localhost; may be given again
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

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
    let (access, token) = access(args)?;
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
    let (listener, place) = listen(args, token).await?;
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

/// The rules of access, and the text of a token that was made here.
fn access(args: &ServeArgs) -> anyhow::Result<(Access, Option<String>)> {
    let is_local = args.socket.is_some() || args.listen.ip().is_loopback();
    if !is_local && !args.allow_remote {
        let message = format!(
            "{} can be reached by other machines: add --allow-remote --token-file FILE, or listen \
             on 127.0.0.1",
            args.listen
        );
        return Err(coded(USAGE, message));
    }
    let mut names = args.allow_host.clone();
    if !args.listen.ip().is_unspecified() {
        names.push(without_port(args.listen));
    }
    let (admits, text) = match &args.token_file {
        Some(file) => (Admits::Bearer(Token::read(file)?), None),
        // Others cannot reach it.
        None if args.socket.is_some() => (Admits::User(None), None),
        None => {
            let (token, text) = Token::generate().context("failed to make a token")?;
            (Admits::User(Some(token)), Some(text))
        }
    };
    Ok((Access { names, admits }, text))
}

fn without_port(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

fn compat(args: &ServeArgs) -> Compat {
    let Some(systems) = &args.compat else {
        return if args.allow_remote {
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

async fn listen(args: &ServeArgs, token: Option<&str>) -> anyhow::Result<(Listener, String)> {
    if let Some(path) = &args.socket {
        let failed = || format!("failed to listen at {}", path.display());
        let listener = Listener::unix(path).with_context(failed)?;
        return Ok((listener, describe(path)));
    }
    let failed = || format!("failed to listen at {}", args.listen);
    let listener = TcpListener::bind(args.listen).await.with_context(failed)?;
    let address = listener.local_addr().with_context(failed)?;
    let prefix = token.map(|token| format!("t/{token}/")).unwrap_or_default();
    let place = format!("http://{address}/{prefix}");
    Ok((Listener::tcp(listener), place))
}

fn describe(path: &Path) -> String {
    format!(
        "at {}: curl --unix-socket {0} http://localhost/",
        path.display()
    )
}
