//! `memprof-fleet`: heap profiles of many machines. An agent on each of them takes dumps by a policy and
//! writes them as Parquet files to an object store; questions are answered from these files.
//!
//! To look at one process, see `memprof`, which runs this program for `memprof agent` and `memprof fleet`.

mod args;
mod config;
mod output;
mod target;
mod time;
mod tls;
mod units;

mod attached;
mod naming;
mod policy;
mod take;

mod dumped;
mod heap;
mod spool;

mod schema;
mod store;

mod drain;

mod bus;
mod scraped;

mod agent;

mod scan;

#[cfg(feature = "otlp")]
mod otlp;

mod ask;

mod columns;
mod compact;
mod doctor;
mod prune;
mod views;

mod web;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command, Fleet, Processes};
use config::Config;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(&format!("memprof: {error:#}"));
            output::code_of(&error).into()
        }
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Agent(agent) => agent::run(agent),
        Command::Name(name) => naming::run(name),
        Command::Fleet(Fleet::Views { engine, at }) => views::run(*engine, &Config::read(at)?),
        Command::Serve(serve) => web::run(serve),
        Command::Fleet(Fleet::Ps { asked }) => {
            let Processes {
                at,
                bus,
                target,
                json,
            } = asked;
            let config = Config::read(at)?.with(bus);
            match config.nats.url {
                Some(_) => ask::live::ps(&config, target, *json),
                None => ask::instances::ps(&config, target, *json),
            }
        }
        Command::Fleet(Fleet::Dump(dump)) => ask::live::dump(dump),
        Command::Fleet(Fleet::Top(question)) => ask::top(question),
        Command::Fleet(Fleet::Growth(growth)) => ask::instances::growth(growth),
        Command::Fleet(Fleet::Flame(flame)) => ask::flame(flame),
        Command::Fleet(Fleet::Diff(diff)) => ask::diff(diff),
        Command::Fleet(Fleet::Compact { at }) => compact::run(&Config::read(at)?),
        Command::Fleet(Fleet::Prune { at, keep }) => prune::run(&Config::read(at)?, *keep),
        Command::Fleet(Fleet::Doctor { at }) => doctor::run(&Config::read(at)?),
    }
}
