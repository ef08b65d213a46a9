//! `memprof-fleet`: heap profiles of many machines. An agent on each machine takes dumps by a policy, and
//! writes them as Parquet files to an object store; queries read these files.
//!
//! For a single process see `memprof`, which runs this program for `memprof agent` and `memprof fleet`.

mod args;
mod config;
mod error_log;
mod target;
mod time;
mod tls;
mod units;

mod attachments;
mod machine_info;
mod naming;
mod policy;
mod take_profile;

mod heap;
mod process_profile;
mod spool;

mod s3_errors;
mod schema;
mod store;

mod drain;

mod bus;
mod listen_error;
mod metrics_server;

mod agent;

mod footer;
mod object_reader;
mod scan;

#[cfg(feature = "otlp")]
mod otlp;

mod query;

mod columns;
mod compact;
mod doctor;
mod prune;
mod read_rows;
mod views;

mod web;

use std::process::ExitCode;

use clap::Parser;
use memprof_output::{FAILED, exit_code_of_error};

use args::{Args, Command, FleetCommand, ProcessArgs, TargetArgs};
use config::Config;

/// Parses the command line and runs the command. Prints the help or the error of the parser, or the error of the
/// command.
fn main() -> ExitCode {
    match Args::try_parse() {
        Ok(args) => memprof_output::finish_command(run(&args), |error| exit_code_of(error).into()),
        Err(error) => memprof_output::print_parser_output(&error),
    }
}

/// Returns the exit code that the error carries; 1 if it carries none.
fn exit_code_of(error: &anyhow::Error) -> u8 {
    exit_code_of_error(error).unwrap_or(FAILED)
}

/// Runs the command, and returns its exit code. An error may have an exit code of its own, see
/// [`with_exit_code`](memprof_output::with_exit_code).
fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Agent(agent) => agent::run(agent),
        Command::Name(name) => naming::run_symbolizer_child(name),
        Command::Fleet(FleetCommand::Views { engine, store }) => {
            views::run(*engine, &Config::read(store)?)
        }
        Command::Serve(serve) => web::run(serve),
        Command::Fleet(FleetCommand::Ps { processes }) => {
            let ProcessArgs {
                store,
                bus,
                target: TargetArgs { target },
                json,
            } = processes;
            let config = Config::read(store)?.with_bus_args(bus);
            match config.nats.url {
                Some(_) => query::agents::run_ps(&config, target, *json),
                None => query::processes::run_ps(&config, target, *json),
            }
        }
        Command::Fleet(FleetCommand::Dump(dump)) => query::agents::run_dump(dump),
        Command::Fleet(FleetCommand::Top(top)) => query::run_top(top),
        Command::Fleet(FleetCommand::Growth(growth)) => query::processes::run_growth(growth),
        Command::Fleet(FleetCommand::Flame(flame)) => query::run_flame(flame),
        Command::Fleet(FleetCommand::Diff(diff)) => query::run_diff(diff),
        Command::Fleet(FleetCommand::Compact { store }) => compact::run(&Config::read(store)?),
        Command::Fleet(FleetCommand::Prune { store, keep }) => {
            prune::run(&Config::read(store)?, *keep)
        }
        Command::Fleet(FleetCommand::Doctor { store }) => doctor::run(&Config::read(store)?),
    }
}
