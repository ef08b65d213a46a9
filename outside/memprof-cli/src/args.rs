//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::attach::AttachArgs;
use crate::check::CheckArgs;
use crate::completion;
use crate::detach::DetachArgs;
use crate::gate::TestArgs;
use crate::holders::HoldersArgs;
use crate::leaks::LeaksArgs;
use crate::ledger::LedgerArgs;
use crate::message::{MessageArgs, MsgArgs};
use crate::new_plugin::NewPluginArgs;
use crate::record::RecordArgs;
use crate::report::ReportArgs;
use crate::run::RunArgs;
use crate::serve::ServeArgs;
use crate::target::ANY_PROCESS_HELP;

/// Heap profiler for running processes.
#[derive(Debug, Parser)]
#[command(name = "memprof", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 success, 1 failed or leaks found, 2 usage, 3 host or process unreachable, \
                        4 process cannot be profiled, 5 no data, 6 mismatch (ABI, build id), \
                        7 over budget."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program with the plugin preloaded; it keeps its own allocator.
    Run(RunArgs),
    Test(TestArgs),
    Attach(AttachArgs),
    Detach(DetachArgs),
    /// List the hosts: running processes that have the plugin.
    Ps {
        /// Also list the processes that could be attached to, by resident memory, and why others cannot
        /// be; none of them is stopped.
        #[arg(short, long)]
        all: bool,
        /// With --all: measure for this time how the processes grow, for example 10s [default: 250ms]
        #[arg(long = "for", value_name = "DURATION", requires = "all", value_parser = crate::process_arg::parse_duration)]
        growth_time: Option<Duration>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Send any message to any plugin of a host.
    Msg(MsgArgs),
    /// List the plugins that a host has loaded and refused, with their messages.
    Plugins {
        /// The host: a pid, a name, container:NAME or a socket's path; not needed while only one host runs.
        #[arg(value_name = "TARGET", add = completion::target_completer())]
        host: Option<String>,
        /// Like TARGET.
        #[arg(
            short,
            long,
            value_name = "TARGET",
            conflicts_with = "host",
            hide = true
        )]
        target: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a plugin of your own, and check it.
    Plugin {
        #[command(subcommand)]
        command: PluginCommand,
    },
    Activate(MessageArgs),
    Deactivate(MessageArgs),
    Dump {
        #[command(flatten)]
        short: MessageArgs,
        /// Also write the dump, which is fetched over the socket, to this file (`-`: standard output).
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Open a report of it as an HTML page in a browser; without a browser, print the page's path.
        #[arg(long)]
        open: bool,
    },
    Stats(MessageArgs),
    Status(MessageArgs),
    /// Diagnose why profiling cannot work in a process, and how to fix it
    ///
    /// A process without the plugin is examined from outside: whether it can be attached to, and its allocators.
    #[command(mut_arg("args", |args| args.help(ANY_PROCESS_HELP)))]
    Doctor(MessageArgs),
    Ledger(LedgerArgs),
    /// Give the allocator's free pages back to the kernel
    ///
    /// Without arguments, the heaps are walked first, for which the process is stopped for a moment, and the result is
    /// compared with what that walk promised.
    Purge(MessageArgs),
    #[command(name = "background_thread")]
    BackgroundThread(MessageArgs),
    Reset(MessageArgs),
    Gdump(MessageArgs),
    Recent(MessageArgs),
    List(MessageArgs),
    Record(RecordArgs),
    Leaks(LeaksArgs),
    Holders(HoldersArgs),
    /// Clean up after a `leaks --prove` or `holders` that is killed, which starts this.
    #[command(hide = true)]
    Reap {
        /// The process that is searched.
        pid: u32,
        /// The memprof that searches it.
        parent: u32,
    },
    Report(Box<ReportArgs>),
    Serve(ServeArgs),
    /// Take heap profiles of this machine's hosts by a policy, and write them to a store.
    #[command(disable_help_flag = true)]
    Agent {
        /// The arguments of `memprof-fleet agent`, which this runs; `memprof agent --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Query the profiles of many machines: ps, dump, top, growth, diff, flame, views, compact, prune, doctor.
    #[command(disable_help_flag = true)]
    Fleet {
        /// The arguments of `memprof-fleet fleet`, which this runs; `memprof fleet --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Check a plugin's file as a host would, in a process of its own.
    Check(CheckArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell; its script belongs where the shell looks, for bash in `/etc/bash_completion.d/memprof`.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands to a directory.
    Man {
        /// Write memprof.1, memprof-dump.1 and the others to this directory [default: print memprof.1].
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Print the environment variable that enables jemalloc's profiler in a program.
    MallocConf {
        /// A program, by its file or its name in PATH, or the pid of a running one [default: the variable for
        /// libjemalloc.so.2].
        #[arg(value_name = "PROGRAM|PID")]
        program: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Make a directory with a plugin that builds, is checked and answers at once.
    New(NewPluginArgs),
    /// Check a plugin's file as a host would, in a process of its own.
    Check(CheckArgs),
    /// Send a message to a plugin: traffic_ctl's spelling of `memprof msg`.
    #[command(hide = true)]
    Msg(MsgArgs),
}
