//! The example host in Rust. It leaks steadily in `grow_cache`, and allocates and frees in `handle_request`, until
//! SIGTERM.
//!
//! ```text
//! _RJEM_MALLOC_CONF=prof:true,prof_active:false rust_host --config host.toml &
//! memprof activate && sleep 5 && memprof dump
//! ```
//!
//! It links tikv's jemalloc statically with a prefix, so it passes the allocator's functions to the plugins.

mod jemalloc;
mod logger;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use memprof_host::{Config, Host, HostProgram};
use nix::sys::signal::{SigSet, Signal};

#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match run_host() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rust_host: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the host and its work until SIGTERM or SIGINT.
fn run_host() -> anyhow::Result<()> {
    let config = Config::read(&parse_config_path()?)?;
    let level = config.log.level().map_err(anyhow::Error::msg)?;
    logger::init_logger(level)?;

    let mut end_signals = SigSet::empty();
    end_signals.add(Signal::SIGTERM);
    end_signals.add(Signal::SIGINT);
    // Before the first thread is created, because threads inherit the mask.
    end_signals
        .thread_block()
        .context("failed to block the signals that end this host")?;

    let mut program = HostProgram::new("rust_host", env!("CARGO_PKG_VERSION"));
    program.jemalloc = Some(jemalloc::jemalloc_functions());
    let host = Host::start(&config, program)?;
    let worker = work::start_worker()?;
    log::info!("serving as pid {}", std::process::id());

    let signal = end_signals.wait().context("failed to wait for the end")?;
    log::info!("{signal}: ending");
    worker.stop();
    drop(host);
    Ok(())
}

/// Parses the command line, which must be `--config FILE`, and returns FILE.
fn parse_config_path() -> anyhow::Result<PathBuf> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.as_slice() {
        [flag, path] if flag == "--config" => Ok(path.into()),
        _ => bail!("usage: rust_host --config FILE"),
    }
}
