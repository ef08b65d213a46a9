//! Command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use memprof_http::ListenOptions;

use crate::policy::parse_share;
use crate::target::Target;
use crate::time::{Instant, parse_instant};

/// Collect and query heap profiles of many machines.
#[derive(Debug, Parser)]
// Users type `memprof fleet`, which executes this program.
#[command(name = "memprof", bin_name = "memprof", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 success, 1 failed, damaged or incomplete, 2 usage, 3 store or server unreachable, \
                  5 no data."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Agent(AgentArgs),
    Serve(ServeArgs),
    /// Query the profiles of many machines
    #[command(subcommand)]
    Fleet(FleetCommand),
    #[command(hide = true)]
    Name(NameArgs),
}

/// Read a dump from standard input, and write it with names (for an agent)
#[derive(clap::Args, Debug)]
pub(crate) struct NameArgs {
    /// The process that was dumped
    pub(crate) pid: u32,
}

/// Take heap profiles of this machine's hosts by a policy, and write them to a store
///
/// The policy in the configuration file says which hosts, and how often; without one, every host every ten minutes.
/// Profiles wait in the spool on this machine's disk until they are in the store.
#[derive(clap::Args, Debug)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) bus: BusArgs,

    /// Take a profile of each host now, write them to the store, and exit
    #[arg(long)]
    pub(crate) once: bool,
}

/// Serve a web page and an API of the profiles in a store over HTTP
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) listen: ListenOptions,
}

/// The store and the configuration of a command.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StoreArgs {
    /// The configuration file [default: /etc/memprof/fleet.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The store: `file:///DIRECTORY` or `s3://BUCKET/PREFIX` [default: `MEMPROF_STORE`, else the
    /// configuration's]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}

/// Options to reach agents.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct BusArgs {
    /// The NATS server that connects agents: `tls://HOST:4222` or `nats://HOST:4222` [default: `MEMPROF_NATS`, else the
    /// configuration's]
    #[arg(long, value_name = "URL")]
    pub(crate) nats: Option<String>,

    /// A file with the seed (private key) of a NATS user [default: the configuration's]
    #[arg(long, value_name = "FILE")]
    pub(crate) nkey_file: Option<PathBuf>,

    /// A file with the certificates that sign the NATS server's [default: the configuration's, else the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// List processes: with NATS, those that agents see now; without, those with profiles of the last 24 hours in the store
    Ps {
        #[command(flatten)]
        processes: ProcessArgs,
    },
    Dump(DumpArgs),
    Top(TopArgs),
    Growth(GrowthArgs),
    Diff(DiffArgs),
    Flame(FlameArgs),
    /// Print SQL views of the store's files
    Views {
        #[command(flatten)]
        store: StoreArgs,
        /// The SQL engine that the views are for
        #[arg(long, alias = "for", value_enum)]
        engine: Engine,
    },
    /// Merge the small files of each past hour into one
    Compact {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Delete profiles that are older than --keep
    Prune {
        #[command(flatten)]
        store: StoreArgs,
        /// Keep profiles for this time, for example 30d [default: the configuration's `keep`, else 14d]
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        keep: Option<Duration>,
    },
    /// Check the configuration, the spool and the store, and every file in it
    Doctor {
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Option that selects processes of the fleet.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TargetArgs {
    /// Only these processes: @SERVICE, MACHINE or MACHINE/PID [default: all]
    #[arg(
        short,
        long,
        value_name = "TARGET",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) target: Target,
}

/// Options that select processes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ProcessArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) bus: BusArgs,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Have agents take profiles now, and write them to the store
///
/// The agents are asked over a NATS server. Each machine takes one profile at a time. Requests that arrive meanwhile get
/// the same profiles. Exits with 1 if an agent or a process is missing, and names it.
#[derive(clap::Args, Debug)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) processes: ProcessArgs,

    /// Only this share of the processes, for example 5%; always the same ones
    #[arg(long, value_name = "SHARE", default_value = "100%", value_parser = parse_share)]
    pub(crate) sample: f64,

    /// Spread the starts of the agents over this time, for example 30s
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    pub(crate) spread: Duration,

    /// Only list the processes, and take no profile
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Show the functions that hold the memory, summed over processes
///
/// Uses the newest profile of each process in the time window (--at, --for).
#[derive(clap::Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,

    /// Only processes whose build id begins with ID
    #[arg(long, value_name = "ID")]
    pub(crate) build: Option<String>,

    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// The profiles of one service, build or process.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SelectArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) window: TimeWindow,
}

/// Time window of the profiles that count.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TimeWindow {
    /// The end of the time window, in UTC: 14:30 (the last one), 2026-11-21T14:30:00Z, or 2h for two hours ago
    /// [default: now]
    #[arg(id = "until", long = "at", value_name = "TIME", value_parser = parse_instant)]
    pub(crate) until: Option<Instant>,

    /// The length of the time window, for example 30m or 7d
    #[arg(id = "length", long = "for", value_name = "DURATION", default_value = "1h", value_parser = humantime::parse_duration)]
    pub(crate) length: Duration,
}

/// Options of a printed table.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TableArgs {
    /// Show this many functions
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,

    /// Print JSON, with every function
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the processes that grew most between their first and last profile in the time window
#[derive(clap::Args, Debug)]
pub(crate) struct GrowthArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,

    /// Show this many processes
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,

    /// Print JSON, with every process
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare two builds: what a process of one holds more than a process of the other, by function
///
/// Each process is the mean of its profiles in the time window, and each build the mean of its processes.
#[derive(clap::Args, Debug)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,

    /// The build to show: its build id begins with ID
    #[arg(long, value_name = "ID")]
    pub(crate) build: String,

    /// The build to compare with: its build id begins with ID
    #[arg(long, value_name = "ID")]
    pub(crate) base: String,

    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// Draw a flamegraph of all processes together, each as the mean of its profiles in the time window
#[derive(clap::Args, Debug)]
pub(crate) struct FlameArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,

    /// Only processes whose build id begins with ID
    #[arg(long, value_name = "ID")]
    pub(crate) build: Option<String>,

    /// Output format
    #[arg(long, value_enum, default_value_t = FlameFormat::Svg)]
    pub(crate) format: FlameFormat,

    /// Write the output to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Output format of `fleet flame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlameFormat {
    /// Flamegraph as SVG, with zoom and search
    #[value(name = "flamegraph", alias = "svg")]
    Svg,
    /// One offline page: flamegraph, table and search
    Html,
    /// One line per stack, for flamegraph tools
    Collapsed,
    /// Gzipped profile.proto, for `go tool pprof`
    Pprof,
    /// OpenTelemetry's profiles, as a collector takes them at /v1development/profiles
    #[cfg(feature = "otlp")]
    Otlp,
}

/// SQL engine, by which the dialect of the views is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// DuckDB 1.1 and newer
    Duckdb,
    /// ClickHouse, or chdb
    Clickhouse,
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_of_one_name_take_values_of_one_name() {
        let mut command = Args::command();
        command.build();
        check_value_names(&command, &mut HashMap::new());
    }

    /// Checks the options of a command and of its subcommands. `value_names` has the value's name of each option so far.
    fn check_value_names(command: &clap::Command, value_names: &mut HashMap<String, String>) {
        for option in command.get_arguments().filter(|arg| !arg.is_positional()) {
            let (Some(long), Some(names)) = (option.get_long(), option.get_value_names()) else {
                continue;
            };
            let name = names.join(" ");
            let shown = format!("{} {option}", command.get_name());
            let known = value_names.entry(long.to_owned());
            assert_eq!(known.or_insert_with(|| name.clone()), &name, "{shown}");
        }
        command
            .get_subcommands()
            .for_each(|sub| check_value_names(sub, value_names));
    }

    #[test]
    fn earlier_names_are_accepted() {
        let check = |words: &str, earlier: &str| {
            let parse =
                |words: &str| format!("{:?}", Args::try_parse_from(words.split(' ')).unwrap());
            assert_eq!(parse(words), parse(earlier), "{earlier}");
        };
        check(
            "memprof fleet views --engine duckdb",
            "memprof fleet views --for duckdb",
        );
        check(
            "memprof fleet flame --format flamegraph",
            "memprof fleet flame --format svg",
        );
    }
}
